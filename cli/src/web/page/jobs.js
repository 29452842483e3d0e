// The list of jobs, and one job.

import { el } from "./dom.js";
import { action, ago, bytes, chip, command, copied, dollars, id, jobLink, look, moment, needs, nodeLink, sentence, several, short, shortId, span, tone } from "./format.js";
import { anew, facts, filters, hash, pager, SIZE, table } from "./table.js";

const STATES = [["", "all"], ["placing,placed,regrouping", "running"], ["failed,rejected", "failed and rejected"], ["queued", "waiting"],
  ["complete", "complete"], ["cancelled", "cancelled"]];

// An array as a bar: each state as wide as it has elements. Of an array with more elements, all are said; otherwise a list that goes on
// has at least these.
function bar(states, more, all) {
  const known = Object.values(states).reduce((sum, n) => sum + n, 0);
  const said = Object.entries(states).map(([state, n]) => `${n.toLocaleString("en")}${more?.includes(state) ? "+" : ""} ${state}`).join(", ")
    + (all > known ? ` of ${all.toLocaleString("en")}` : "");
  return el("span", { class: "array" }, el("span", { class: "bar", "aria-hidden": "true" },
    Object.entries(states).map(([state, n]) => el("span", { class: `part ${tone(state)}`, css: { flexGrow: String(n) }, title: `${n} ${state}` }))), el("span", { title: said }, said));
}

// The row of an array opens its elements.
const ofArray = (jobId, name) => el("a", { href: hash("jobs", { array: jobId }) }, name);
function named(j) {
  const name = j.name ?? j.command ?? short(j.job_id);
  return j.array_states ? [el("span", { class: "name" }, ofArray(j.job_id, `${name}[*]`)), " ", copied(`${short(j.job_id)}[*]`)]
    : [el("span", { class: "name" }, jobLink(j.job_id, j.array_index === undefined ? name : `${name}[${j.array_index}]`)), " ", shortId(j.job_id)];
}

// [head, cell of a row, class, field that the list can be sorted by, width in %].
export const columns = [
  ["Job", named, "wide", "name", 21],
  ["State", j => j.array_states ? bar(j.array_states, [], j.array_count) : chip(j.state), null, "state", 14],
  ["Needs", j => needs(j), "nowrap", null, 12],
  ["Priority", j => j.priority, "n", "priority", 6],
  ["Nodes", j => (j.slots ?? []).flatMap((slot, n) => n ? [", ", nodeLink(slot)] : [nodeLink(slot)]), null, null, 6],
  ["By", j => j.by, "nowrap", "by", 6],
  ["Submitted", j => ago(j.submitted_at), "nowrap", "submitted_at", 8],
  ["Ended", j => ago(j.finished_at), "nowrap", "finished_at", 7],
  ["Why", j => el("span", { title: j.waits_because ?? j.reason }, sentence(j.waits_because ?? j.reason ?? "")), "text"],
];

// All jobs of a share or of a person as one row, which opens their list.
const GROUPS = [["", "a job"], ["share", "a share"], ["by", "a person"]];
const grouped = ({ groups, more }, { group, ...params }) => table("Jobs in groups", [
  [group === "by" ? "Person" : "Share", ([of]) => of ? el("a", { href: anew("jobs", params, { [group]: of }) }, of) : "none", "wide"],
  ["Jobs", ([, states]) => bar(states, more)],
], Object.entries(groups), ([of]) => `group ${of}`, ["jobs", params]);

export const jobs = {
  title: () => "Jobs",
  load: (api, params) => api("jobs", { ...params, limit: SIZE }),
  render(part, params) {
    const only = ["share", "by", "array"].filter(name => params[name]).map(name => el("p", { class: "soft", "data-key": `only-${name}` },
      `Only of ${name === "array" ? `the array ${short(params.array)}[*]` : params[name]}. `, el("a", { href: anew("jobs", params, { [name]: "" }) }, "all")));
    // A column in which all rows are alike leaves its place to the reason.
    const told = columns.filter(([, , , field]) => !["priority", "by"].includes(field) || params.sort?.endsWith(field) || new Set(part.rows.map(j => j[field])).size > 1);
    const counts = Object.entries(part.counts).map(([state, n]) => el("a", { href: hash("jobs", { state: state === "placed" ? "placing,placed,regrouping" : state }), "data-key": state }, chip(state), ` ${n.toLocaleString("en")}${part.more.includes(state) ? "+" : ""}`));
    return [
      el("div", { class: "row" }, el("h1", { tabindex: "-1" }, "Jobs"), el("p", { class: "counts" }, counts.length ? counts : "No job is stored. Submit one: ", !counts.length && el("code", null, "nodekeeper submit -- echo hello"))),
      filters("jobs", params, STATES, "name, person, label, id, command or reason", GROUPS),
      only,
      part.groups && grouped(part, params),
      part.total > 0 && table(params.sort ? "Jobs, sorted" : "Jobs: running first, then failed, then waiting in the order of the queue", told, part.rows, j => j.job_id, ["jobs", params]),
      !part.groups && pager("jobs", params, part, "job", part.rows.some(j => j.array_states) ? "line" : "job"),
    ];
  },
};

function output(alloc, live) {
  if (live?.text) {
    return [alloc.client !== "running" && el("p", { class: "soft" }, "The last lines that its node stored before it fell silent:"),
      el("pre", { class: "log live", tabindex: "0", role: "region", "aria-label": `The last stored lines of ${alloc.alloc_id}` }, live.text)];
  }
  if (live?.error) return el("p", { class: "soft" }, `Its stored output cannot be shown: ${live.error}.`);
  if (alloc.log_tail) {
    return el("pre", { class: "log", tabindex: "0", role: "region", "aria-label": `The end of the output of ${alloc.alloc_id}` }, alloc.log_tail);
  }
  if (["complete", "failed"].includes(alloc.client)) return el("p", { class: "soft" }, "It printed nothing.");
  return el("p", { class: "soft" }, alloc.client === "running" ? "It has printed nothing so far, or its node has not stored it yet." : "No output is stored.");
}

const labels = of => Object.entries(of ?? {}).map(([key, value]) => `${key}=${value}`).join(", ");

// What was used of what was asked for.
function used(usage, j) {
  if (!usage) return null;
  const share = usage.ran_ms ? `, ${Math.round(100 * usage.cpu_ms / (usage.ran_ms * j.vcpus))} % of ${j.vcpus} vCPU` : "";
  const asked = j.memory_mib ? ` of ${bytes(j.memory_mib * 2 ** 20)}` : "";
  return [`${span(usage.cpu_ms)} of CPU in ${span(usage.ran_ms)}${share}`,
    usage.memory_mib === undefined ? null : `${bytes(usage.memory_mib * 2 ** 20)}${asked} memory`,
    usage.read_bytes === undefined ? null : `${bytes(usage.read_bytes)} read`,
    usage.written_bytes === undefined ? null : `${bytes(usage.written_bytes)} written`,
    usage.scratch_mib === undefined ? null : `${bytes(usage.scratch_mib * 2 ** 20)} scratch space`,
    usage.gpu_percent === undefined ? null : `GPU ${usage.gpu_percent} % busy`,
    usage.gpu_memory_mib === undefined ? null : `${bytes(usage.gpu_memory_mib * 2 ** 20)} GPU memory`].filter(part => part !== null).join(", ");
}

// What a person may want to run about this job.
function commands(j) {
  const id = short(j.job_id), ran = j.all_allocs.length > 0;
  const all = {
    queued: [look(j.job_id, ran), j.paused ? `nodekeeper continue ${id}` : `nodekeeper pause ${id}`, `nodekeeper cancel ${id}`],
    placed: [`nodekeeper logs -f ${id}`, `nodekeeper shell ${id}`, `nodekeeper cancel ${id}`], placing: [`nodekeeper cancel ${id}`], regrouping: [`nodekeeper cancel ${id}`],
  };
  return el("p", { class: "commands" }, (all[j.state] ?? [look(j.job_id, ran), `nodekeeper rerun ${id}`]).map(text => command(text)));
}

function alloc(a, j) {
  const ran = a.started_at ? span((a.finished_at ?? Date.now()) - a.started_at) : null;
  return el("article", { class: "card", "data-key": a.alloc_id },
    el("h3", null, chip(a.client), a.phase ? ` (${a.phase})` : "", ` on `, nodeLink(a.slot)),
    facts([["Alloc", id(a.alloc_id)], ["Node", id(a.node_id)], ["Placed", ago(a.placed_at)], ["Began", ago(a.started_at)], ["Ran", a.finished_at ? ran : null],
      ["Ended", ago(a.finished_at)], ["Exit code", a.exit_code], ["Used", used(a.usage, j)], ["Message", a.message], ["Told to", a.desired === "stop" ? "stop" : null],
      ["Whole output", a.output_s3 ? el("code", { class: "wrap" }, a.output_s3) : null],
      ["Keeps", a.kept ? el("code", { class: "wrap" }, a.kept.map((k) => k.path).join(", ")) : null]]),
    output(a, j.live?.[a.alloc_id]));
}

export const job = {
  title: data => data.name ?? data.job_id,
  async load(api, params) {
    const path = `jobs/${encodeURIComponent(params.id)}`;
    const job = await api(path);
    // The lines are a moment newer than the rest, never older. Without its end from the node, what is stored tells what an alloc printed.
    const live = job.all_allocs.some(a => a.client === "running" || a.output_s3 && !a.log_tail) ? (await api(`${path}/output`)).allocs : {};
    return { ...job, live };
  },
  // Lines are read as they come.
  every: j => j.all_allocs.some(a => a.client === "running") ? 2000 : null,
  after() {
    for (const log of document.querySelectorAll(".live")) {
      // Whoever has scrolled up reads there.
      if (log.tall === undefined || log.tall - log.clientHeight - log.scrollTop < 4) log.scrollTop = log.scrollHeight;
      log.tall = log.scrollHeight;
    }
  },
  render(j) {
    const begin = j.story[0]?.at;
    const story = j.story.map((h, n) => ({ ...h, n }));
    return [
      el("p", { class: "back" }, el("a", { href: "#/jobs" }, "All jobs")),
      el("h1", { tabindex: "-1" }, j.name ?? "Job", " ", chip(j.state)),
      el("p", null, id(j.job_id)),
      j.waits_because && el("p", { class: "why" }, ["queued", "placing", "regrouping"].includes(j.state) ? "It waits: " : "Now: ", sentence(j.waits_because), j.starts && (j.starts.startsWith("not known") ? `. When it starts is ${j.starts}.` : `. It starts ${j.starts}.`)),
      j.would_start_if && el("p", { class: "why" }, "It would start now if ", j.would_start_if.map((change, n) => [n ? ", or if " : "", sentence(change)]), "."),
      commands(j),
      el("section", { class: "card" }, el("h2", null, "What it is"), facts([
        ["Command", el("code", { class: "wrap" }, j.whole_command)], ["Reason", j.reason], ["By", j.by], ["Element", j.array_index === undefined ? null : [`${j.array_index} of `, ofArray(j.job_id, several(j.array_count, "element"))]], ["Labels", labels(j.labels)],
        ["Needs", needs(j)], ["Exclusive", j.exclusive ? "yes" : null],
        ["Priority", j.priority], ["Submitted", ago(j.submitted_at)], ["Began", ago(j.started_at)], ["Ended", ago(j.finished_at)],
        ["Cost", j.usd ? `${dollars(j.usd)} (its part of its nodes)` : null], ["Image", j.image],
        ["Caches", (j.caches ?? []).join(", ")], ["Environment", j.env ? `${Object.keys(j.env).join(", ")} (values are not shown)` : null],
        ["Time-out", j.timeout_s ? span(j.timeout_s * 1000) : null],
        ["Used", used(j.tries?.usage, j)],
        ["Failed", j.failed_count ? several(j.failed_count, "time") : null], ["Lost", j.lost_count ? several(j.lost_count, "time") : null], ["Moved", j.tries?.moves ? several(j.tries.moves, "time") : null],
        ["Retries", j.rules.map(r => el("div", null, el("code", { class: "wrap" }, r.rule), ` used ${several(r.used, "time")}`))],
        ["Silent node", `waited for ${span(j.lost_after_s * 1000)}${j.replace ? ", with a copy meanwhile" : ""}`],
      ])),
      el("section", null, el("h2", null, "Allocs and their output"),
        j.all_allocs.length ? j.all_allocs.map(a => alloc(a, j)) : el("p", { class: "soft" }, "Nothing has run yet.")),
      el("section", null, el("h2", null, "Story"), story.length ? table("What happened, the oldest first", [
        ["When", h => moment(h.at), "nowrap"], ["After", h => span(h.at - begin), "n"], ["What", h => action(h.action)],
        ["Of", h => h.subject.startsWith("alloc#") ? h.subject.slice(h.subject.indexOf(".") + 1) : "the job"], ["Reason", h => h.reason, "text"],
      ], story, h => `${h.n}`) : el("p", { class: "soft" }, "No event is kept.")),
    ];
  },
};
