// Times, amounts and words for people.

import { el } from "./dom.js";

let skew = 0;

// The server's clock counts: this machine's may be wrong.
export function setNow(now) {
  skew = now - Date.now();
}
export const now = () => Date.now() + skew;

export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} days`;
}

const two = n => String(n).padStart(2, "0");
export const clock = at => { const d = new Date(at); return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`; };
export const day = at => { const d = new Date(at); return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`; };

// When something was, relative to now. The exact time is in the title.
export function ago(at) {
  if (at === null || at === undefined) return "";
  const since = now() - at;
  const text = since < -999 ? `in ${span(-since)}` : `${span(since)} ago`;
  return el("time", { datetime: new Date(at).toISOString(), title: `${day(at)} ${clock(at)}` }, text);
}

// When something was that is surely over. Parts of an answer are read one after the other, so it may be newer than the answer.
export const past = at => at === null || at === undefined ? "" : ago(Math.min(at, now()));

// A time of day, with the day if it is another one.
export function moment(at) {
  const text = day(at) === day(now()) ? clock(at) : `${day(at)} ${clock(at)}`;
  return el("time", { datetime: new Date(at).toISOString() }, text);
}

export const dollars = usd => usd === 0 || usd >= 0.1 ? `$${usd.toFixed(2)}` : `$${usd.toFixed(4)}`;
export const several = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
export function bytes(n) {
  let unit = 0;
  for (; n >= 1024 && unit < 4; unit++) n /= 1024;
  return `${unit ? n.toFixed(1) : n} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}
export const memory = mib => mib % 1024 === 0 ? `${mib / 1024} GiB` : `${mib} MiB`;

export function needs(job) {
  const parts = [`${job.vcpus} vCPU`];
  if (job.memory_mib) parts.push(memory(job.memory_mib));
  if (job.scratch_gib) parts.push(`${job.scratch_gib} GiB scratch`);
  if (job.gpus) parts.push(`${job.gpus} GPU`);
  return (job.nodes > 1 ? `${job.nodes} × ` : "") + parts.join(", ");
}

// A word, its tone, and the sign that shows the tone without colours.
const TONES = {
  ready: "good", complete: "good", running: "cool", placed: "cool", in_use: "good", working: "good", ok: "good",
  syncing: "cool", assigned: "cool", pending: "cool", booting: "cool",
  shutting_down: "warm", "shutting-down": "warm", disconnected: "warm", placing: "warm", regrouping: "warm", unknown: "warm", stopping: "warm",
  silent: "warm", look: "warm",
  down: "bad", failed: "bad", rejected: "bad", lost: "bad", wrong: "bad",
};
const SIGNS = { good: "●", cool: "▶", warm: "▲", bad: "✖", "": "○" };
const WORDS = { placed: "running", wrong: "wrong", in_use: "in use", shutting_down: "shutting down", assigned: "booting" };

export const tone = word => TONES[word] ?? "";

export function chip(word) {
  return el("span", { class: `chip ${tone(word)}` }, el("span", { "aria-hidden": "true" }, SIGNS[tone(word)]), " ", WORDS[word] ?? word.replaceAll("_", " "));
}

// Something that can be copied, and what is shown of it.
export const copied = (text, shown = text) => el("span", { class: "id" }, el("code", { title: shown === text ? null : text }, shown),
  el("button", { type: "button", class: "copy", "data-copy": text, "aria-label": `Copy ${text}`, title: "Copy" }));
export const id = text => copied(text);

// The end of an id, as commands take and show it.
export const short = text => text.slice(-8);

export const shortId = text => copied(text, short(text));
export const command = text => copied(text);

export const jobLink = (jobId, name) => el("a", { href: `#/job/${jobId}` }, name ?? jobId);
export const nodeLink = slot => el("a", { href: `#/node/${slot}` }, `slot ${slot}`);

// What an event is about, as a link.
export function subject(row) {
  const [kind, rest] = row.subject.split("#");
  if (kind === "slot") return nodeLink(rest);
  if (kind === "job") return jobLink(rest, row.name);
  if (kind === "alloc") {
    const [job, member, copy] = rest.split(".");
    return jobLink(job, row.name ? `${row.name} (${member}.${copy})` : rest);
  }
  return rest ?? kind;
}

// What looks closer at a job. One that never ran has no output.
export const look = (jobId, ran) => ran ? `nodekeeper logs ${short(jobId)}` : `nodekeeper job ${short(jobId)}`;

// A sentence in which commands stand in backticks.
export const sentence = text => text.split("`").map((part, n) => n % 2 ? el("code", null, part) : part);

export const action = word => word.replaceAll("_", " ");
