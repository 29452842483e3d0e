// The list of jobs, and one job.

import { el } from "./dom.js";
import { action, ago, bytes, chip, command, dollars, id, jobLink, moment, needs, nodeLink, sentence, several, short, shortId, span, tone } from "./format.js";
import { facts, filters, hash, pager, SIZE, table } from "./table.js";

const STATES = [["", "all"], ["placing,placed,regrouping", "running"], ["failed,rejected", "failed and rejected"], ["queued", "waiting"],
  ["complete", "complete"], ["cancelled", "cancelled"]];

// An array as a bar: each state as wide as it has elements.
function bar(states) {
  const said = Object.entries(states).map(([state, n]) => `${n.toLocaleString("en")} ${state}`).join(", ");
  return el("span", { class: "array" }, el("span", { class: "bar", "aria-hidden": "true" },
    Object.entries(states).map(([state, n]) => el("span", { class: `part ${tone(state)}`, css: { flexGrow: String(n) }, title: `${n} ${state}` }))), said);
}

// [head, cell of a row, class, field that the list can be sorted by].
export const columns = [
  ["Job", j => [el("span", { class: "name" }, jobLink(j.job_id, `${j.name ?? j.command ?? short(j.job_id)}${j.array_states ? "[*]" : ""}`)), " ", shortId(j.job_id)], "wide", "name"],
  ["State", j => j.array_states ? bar(j.array_states) : chip(j.state), null, "state"],
  ["Needs", j => needs(j), "nowrap"],
  ["Priority", j => j.priority, "n", "priority"],
  ["Nodes", j => (j.slots ?? []).flatMap((slot, n) => n ? [", ", nodeLink(slot)] : [nodeLink(slot)])],
  ["By", j => j.by, "nowrap", "by"],
  ["Submitted", j => ago(j.submitted_at), "nowrap", "submitted_at"],
  ["Ended", j => ago(j.finished_at), "nowrap", "finished_at"],
  ["Why", j => el("span", { title: j.waits_because ?? j.reason }, sentence(j.waits_because ?? j.reason ?? "")), "text"],
];

// All jobs of a share or of a person as one row, which opens their list.
const GROUPS = [["", "a job"], ["share", "a share"], ["by", "a person"]];
const grouped = ({ groups }, { group, ...params }) => table("Jobs in groups", [
  [group === "by" ? "Person" : "Share", ([of]) => of ? el("a", { href: hash("jobs", { ...params, [group]: of }) }, of) : "none", "wide"],
  ["Jobs", ([, states]) => bar(states)],
], Object.entries(groups), ([of]) => `group ${of}`, ["jobs", params]);

export const jobs = {
  title: () => "Jobs",
  load: (api, params) => api("jobs", { ...params, limit: SIZE }),
  render(part, params) {
    const only = ["share", "by"].filter(name => params[name]).map(name => el("p", { class: "soft", "data-key": `only-${name}` },
      `Only of ${params[name]}. `, el("a", { href: hash("jobs", { ...params, [name]: "" }) }, "all")));
    const counts = Object.entries(part.counts).map(([state, n]) => el("a", { href: hash("jobs", { state: state === "placed" ? "placing,placed,regrouping" : state }), "data-key": state }, chip(state), ` ${n.toLocaleString("en")}${part.more.includes(state) ? "+" : ""}`));
    return [
      el("div", { class: "row" }, el("h1", { tabindex: "-1" }, "Jobs"), el("p", { class: "counts" }, counts.length ? counts : "No job is stored. Submit one: ", !counts.length && el("code", null, "nodekeeper submit -- echo hello"))),
      filters("jobs", params, STATES, "name, person, label, id, command or reason", GROUPS),
      only,
      part.groups && grouped(part, params),
      part.total > 0 && table(params.sort ? "Jobs, sorted" : "Jobs: running first, then failed, then waiting in the order of the queue", columns, part.rows, j => j.job_id, ["jobs", params]),
      !part.groups && pager("jobs", params, part, "job"),
    ];
  },
};

function output(alloc, live) {
  if (live?.text) {
    return el("pre", { class: "log live", tabindex: "0", role: "region", "aria-label": `The last lines of ${alloc.alloc_id}, while it runs` }, live.text);
  }
  if (alloc.log_tail) {
    return el("pre", { class: "log", tabindex: "0", role: "region", "aria-label": `The end of the output of ${alloc.alloc_id}` }, alloc.log_tail);
  }
  const ended = ["complete", "failed", "lost"].includes(alloc.client);
  return el("p", { class: "soft" }, ended ? "Its node reported no output." : "It has printed nothing so far, or its node has not stored it yet.");
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
  const id = short(j.job_id), ended = ["complete", "failed", "cancelled", "rejected"].includes(j.state);
  const all = ended ? [`nodekeeper logs ${id}`, `nodekeeper rerun ${id}`] : [`nodekeeper logs -f ${id}`, ...(j.state === "placed" ? [`nodekeeper enter ${id}`] : []), `nodekeeper cancel ${id}`];
  return el("p", { class: "commands" }, all.map(text => command(text)));
}

function alloc(a, j) {
  const ran = a.started_at ? span((a.finished_at ?? Date.now()) - a.started_at) : null;
  return el("article", { class: "card", "data-key": a.alloc_id },
    el("h3", null, chip(a.client), a.phase ? ` (${a.phase})` : "", ` on `, nodeLink(a.slot)),
    facts([["Alloc", id(a.alloc_id)], ["Node", id(a.node_id)], ["Placed", ago(a.placed_at)], ["Ran", a.finished_at ? ran : null],
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
    // The lines are a moment newer than the rest, never older.
    const live = job.all_allocs.some(a => a.client === "running") ? (await api(`${path}/output`)).allocs : {};
    return { ...job, live };
  },
  // Lines are read as they come.
  every: j => Object.keys(j.live).length ? 2000 : null,
  after() {
    for (const log of document.querySelectorAll(".live")) {
      // Whoever has scrolled up reads there.
      if (log.dataset.end === undefined || Math.abs(Number(log.dataset.end) - log.scrollTop) < 4) log.scrollTop = log.scrollHeight;
      log.dataset.end = String(log.scrollTop);
    }
  },
  render(j) {
    const begin = j.story[0]?.at;
    const story = j.story.map((h, n) => ({ ...h, n }));
    return [
      el("p", { class: "back" }, el("a", { href: "#/jobs" }, "All jobs")),
      el("h1", { tabindex: "-1" }, j.name ?? "Job", " ", chip(j.state)),
      el("p", null, id(j.job_id)),
      j.waits_because && el("p", { class: "why" }, ["queued", "placing", "regrouping"].includes(j.state) ? "It waits: " : "Now: ", sentence(j.waits_because), j.starts && [". It starts ", j.starts]),
      j.would_start_if && el("p", { class: "why" }, "It would start now if ", j.would_start_if.map((change, n) => [n ? ", or if " : "", sentence(change)]), "."),
      commands(j),
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
