// The list of jobs, and one job.

import { el } from "./dom.js";
import { action, ago, bytes, chip, dollars, id, jobLink, moment, needs, nodeLink, sentence, several, span } from "./format.js";
import { facts, filters, hash, pager, SIZE, table } from "./table.js";

const STATES = [["", "all"], ["placing,placed,regrouping", "running"], ["failed,rejected", "failed and rejected"], ["queued", "waiting"],
  ["complete", "complete"], ["cancelled", "cancelled"]];

export const columns = [
  ["Job", j => [el("div", { class: "name" }, jobLink(j.job_id, `${j.name ?? j.command ?? j.job_id}${j.array_states ? "[*]" : ""}`)), id(j.job_id)], "wide"],
  ["State", j => j.array_states ? Object.entries(j.array_states).map(([state, n]) => el("div", null, chip(state), ` ${n.toLocaleString("en")}`)) : chip(j.state)],
  ["Needs", j => needs(j)],
  ["Priority", j => j.priority, "n"],
  ["Nodes", j => (j.slots ?? []).flatMap((slot, n) => n ? [", ", nodeLink(slot)] : [nodeLink(slot)])],
  ["By", j => j.by],
  ["Submitted", j => ago(j.submitted_at), "nowrap"],
  ["Ended", j => ago(j.finished_at), "nowrap"],
  ["Why", j => sentence(j.waits_because ?? j.reason ?? ""), "text"],
];

export const jobs = {
  title: () => "Jobs",
  load: (api, params) => api("jobs", { q: params.q, state: params.state, offset: params.offset, limit: SIZE }),
  render(part, params) {
    const counts = Object.entries(part.counts).map(([state, n]) => el("a", { href: hash("jobs", { state: state === "placed" ? "placing,placed,regrouping" : state }), "data-key": state }, chip(state), ` ${n.toLocaleString("en")}${part.more.includes(state) ? "+" : ""}`));
    return [
      el("h1", { tabindex: "-1" }, "Jobs"),
      el("p", { class: "counts" }, counts.length ? counts : "No job is stored. Submit one: ", !counts.length && el("code", null, "nodekeeper submit -- echo hello")),
      filters("jobs", params, STATES, "name, person, label, id, command or reason"),
      part.total > 0 && table("Jobs: running first, then failed, then waiting in the order of the queue", columns, part.rows, j => j.job_id),
      pager("jobs", params, part, "job"),
    ];
  },
};

function output(alloc) {
  if (alloc.log_tail) {
    return el("pre", { class: "log", tabindex: "0", role: "region", "aria-label": `The end of the output of ${alloc.alloc_id}` }, alloc.log_tail);
  }
  const ended = ["complete", "failed", "lost"].includes(alloc.client);
  return el("p", { class: "soft" }, ended ? "Its node reported no output." : "Its output is on its node until it ends.");
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

function alloc(a, j) {
  const ran = a.started_at ? span((a.finished_at ?? Date.now()) - a.started_at) : null;
  return el("article", { class: "card", "data-key": a.alloc_id },
    el("h3", null, chip(a.client), a.phase ? ` (${a.phase})` : "", ` on `, nodeLink(a.slot)),
    facts([["Alloc", id(a.alloc_id)], ["Node", id(a.node_id)], ["Placed", ago(a.placed_at)], ["Ran", a.finished_at ? ran : null],
      ["Ended", ago(a.finished_at)], ["Exit code", a.exit_code], ["Used", used(a.usage, j)], ["Message", a.message], ["Told to", a.desired === "stop" ? "stop" : null],
      ["Whole output", a.output_s3 ? el("code", { class: "wrap" }, a.output_s3) : null],
      ["Keeps", a.kept ? el("code", { class: "wrap" }, a.kept.map((k) => k.path).join(", ")) : null]]),
    output(a));
}

export const job = {
  title: data => data.name ?? data.job_id,
  load: (api, params) => api(`jobs/${encodeURIComponent(params.id)}`),
  render(j) {
    const begin = j.story[0]?.at;
    const story = j.story.map((h, n) => ({ ...h, n }));
    return [
      el("p", { class: "back" }, el("a", { href: "#/jobs" }, "All jobs")),
      el("h1", { tabindex: "-1" }, j.name ?? "Job", " ", chip(j.state)),
      el("p", null, id(j.job_id)),
      j.waits_because && el("p", { class: "why" }, ["queued", "placing", "regrouping"].includes(j.state) ? "It waits: " : "Now: ", sentence(j.waits_because)),
      el("section", { class: "card" }, el("h2", null, "What it is"), facts([
        ["Command", el("code", { class: "wrap" }, j.whole_command)], ["Reason", j.reason], ["By", j.by], ["Labels", labels(j.labels)],
        ["Needs", needs(j)], ["Exclusive", j.exclusive ? "yes" : null],
        ["Priority", j.priority], ["Submitted", ago(j.submitted_at)], ["Began", ago(j.started_at)], ["Ended", ago(j.finished_at)],
        ["Cost", j.usd ? `${dollars(j.usd)} (its part of its nodes)` : null], ["Image", j.image],
        ["Caches", (j.caches ?? []).join(", ")], ["Environment", j.env ? `${Object.keys(j.env).join(", ")} (values are not shown)` : null],
        ["Time-out", j.timeout_s ? span(j.timeout_s * 1000) : null],
        ["Used", used(j.tries?.usage, j)],
        ["Failed", several(j.failed_count, "time")], ["Lost", several(j.lost_count, "time")], ["Moved", j.tries?.moves ? several(j.tries.moves, "time") : null],
        ["Retries", j.rules.map(r => el("div", null, el("code", { class: "wrap" }, r.rule), ` used ${several(r.used, "time")}`))],
        ["Silent node", `waited for ${span(j.lost_after_s * 1000)}${j.replace ? ", with a copy meanwhile" : ""}`],
      ])),
      el("section", null, el("h2", null, "Allocs and their output"),
        j.all_allocs.length ? j.all_allocs.map(a => alloc(a, j)) : el("p", { class: "soft" }, "Nothing has run yet.")),
      el("section", null, el("h2", null, "Story"), story.length ? table("What happened, the oldest first", [
        ["When", h => moment(h.at), "nowrap"], ["After", h => span(h.at - begin), "n"], ["What", h => action(h.action)],
        ["Of", h => h.subject.startsWith("alloc#") ? h.subject.slice(-3) : "the job"], ["Reason", h => h.reason, "text"],
      ], story, h => `${h.n}`) : el("p", { class: "soft" }, "No event is kept.")),
    ];
  },
};
