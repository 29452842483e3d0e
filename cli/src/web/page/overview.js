// The first view: what is going on, what failed, what waits and why, and how it was.

import { draw, places } from "./chart.js";
import { TIMES } from "./cost.js";
import { el } from "./dom.js";
import { fold } from "./events.js";
import { ago, chip, dollars, id, sentence, several } from "./format.js";
import { columns } from "./jobs.js";
import { choice, hash, table } from "./table.js";

// A local cluster is rarely there for a day.
const usual = seen => seen.local ? "10" : "1440";
const FEW = 8;
const short = columns.filter(([head]) => !["Priority", "Ended"].includes(head));
const failed = columns.filter(([head]) => ["Job", "State", "Ended", "Why"].includes(head));

function tile(label, value, href, tone) {
  return el("a", { class: `tile ${tone ?? ""}`, href, "data-key": label }, el("span", { class: "value" }, value), el("span", { class: "label" }, label));
}

function few(title, part, columns, state, none) {
  return el("section", { "data-key": title }, el("h2", null, title, part.total > 0 && ` (${part.total.toLocaleString("en")})`),
    part.rows.length ? table(title, columns, part.rows, j => j.job_id) : el("p", { class: "soft" }, none),
    part.total > part.rows.length && el("p", null, el("a", { href: hash("jobs", { state }) }, `all ${part.total.toLocaleString("en")}`)));
}

// Why jobs wait and nodes stay, each reason once.
function why({ waiting = [], staying = [], limits = [] }) {
  if (!waiting.length && !limits.length && !staying.length) return null;
  const line = (key, ...text) => el("li", { "data-key": key }, ...text);
  return el("section", { "data-key": "why" }, el("h2", null, "What is not done, and why"), el("ul", { class: "why-list" },
    limits.map(l => line(`limit ${l.word} ${l.reason}`, el("strong", null, "limit "), l.reason)),
    waiting.slice(0, FEW).map(w => line(`job ${w.job_id}`, w.jobs === 1 ? el("a", { href: `#/job/${w.job_id}` }, sentence(w.line)) : sentence(w.line))),
    waiting.length > FEW && line("more", `and ${waiting.length - FEW} more reasons`),
    staying.slice(0, FEW).map(n => line(`slot ${n.slot}`, el("a", { href: `#/node/${n.slot}` }, `slot ${n.slot}`), " stays: ", sentence(n.reason))),
    staying.length > FEW && line("more-nodes", `and ${several(staying.length - FEW, "more node")}`)));
}

function local(extra, purposes) {
  const functions = extra.functions.length ? table("Functions of this machine", [
    ["Function", f => el("span", { title: purposes[f.function] }, f.function)], ["Runs", f => f.invocations, "n"],
    ["Errors", f => f.errors, "n"], ["Running", f => f.running, "n"],
    ["Last run took", f => f.last ? `${f.last.duration_ms} ms` : "", "n"], ["Last run", f => f.last ? ago(f.last.at) : "", "nowrap"],
  ], extra.functions, f => f.function) : el("p", { class: "soft" }, "The functions run elsewhere.");
  const instances = extra.instances.length ? table("Instances of this machine", [
    ["Instance", i => id(i.instance_id)], ["State", i => chip(i.state)], ["Size", i => i.size], ["Type", i => `${i.instance_type}${i.market === "spot" ? " (spot)" : ""}`],
    ["Node", i => i.node_id ? el("a", { href: `#/node/${i.node_id.split("-")[0]}` }, i.node_id) : "", "wide"], ["Launched", i => ago(i.launched_at), "nowrap"],
  ], extra.instances.slice(0, 20), i => i.instance_id) : el("p", { class: "soft" }, "No instance was launched yet.");
  return el("details", { "data-key": "local" }, el("summary", null, "Functions and instances of this machine"), el("h2", null, "Functions"), functions, el("h2", null, "Instances"), instances);
}

export const overview = {
  title: () => "Overview",
  async load(api, params, seen) {
    const [running, bad, events, past] = await Promise.all([
      api("jobs", { state: "placing,placed,regrouping", limit: FEW }),
      api("jobs", { state: "failed,rejected", limit: FEW }),
      api("events", { limit: 40 }),
      api("history", { minutes: params.minutes ?? usual(seen) }),
    ]);
    const extra = seen.local ? await api("local") : null;
    return { running, bad, events, past, extra, seen };
  },
  render({ running, bad, events, past, extra, seen }, params) {
    const { jobs, nodes, price_per_hour } = seen.status;
    const busy = (jobs.placing ?? 0) + (jobs.placed ?? 0) + (jobs.regrouping ?? 0);
    const done = running.counts.complete ?? 0;
    const none = ["No job runs.", running.all === 0 && [" Submit one: ", el("code", null, "nodekeeper run -- echo hello")]];
    const bads = (running.counts.failed ?? 0) + (running.counts.rejected ?? 0);
    const up = Object.entries(nodes).filter(([state]) => state !== "cleaned").reduce((sum, [, n]) => sum + n, 0);
    return [
      el("h1", { class: "sr", tabindex: "-1" }, "Overview"),
      el("div", { class: "tiles" },
        tile("running", busy.toLocaleString("en"), hash("jobs", { state: "placing,placed,regrouping" }), busy ? "cool" : ""),
        tile("failed", bads.toLocaleString("en"), hash("jobs", { state: "failed,rejected" }), bads ? "bad" : ""),
        tile("waiting", (jobs.queued ?? 0).toLocaleString("en"), hash("jobs", { state: "queued" })),
        tile("complete", done.toLocaleString("en"), hash("jobs", { state: "complete" }), done ? "good" : ""),
        tile(`of ${several(up, "node")} ready`, (nodes.ready ?? 0).toLocaleString("en"), "#/nodes", nodes.ready ? "good" : ""),
        tile("an hour, by list prices", dollars(price_per_hour), "#/cost")),
      few("Running", running, running.rows.some(j => j.waits_because ?? j.reason) ? short : short.filter(([head]) => head !== "Why"), "placing,placed,regrouping", none),
      few("Failed", bad, failed, "failed,rejected", "No job failed."),
      why(seen.explained ?? {}),
      el("section", { "data-key": "time" }, el("div", { class: "row" }, el("h2", null, "Over time"), choice("overview", params, "minutes", "Time", TIMES, usual(seen))),
        el("div", { class: "charts" }, places(past))),
      el("section", { "data-key": "events" }, el("h2", null, "What happened"), fold(events.rows), el("p", null, el("a", { href: "#/events" }, "more events"))),
      extra && local(extra, seen.purposes),
    ];
  },
  after: ({ past }) => draw(past),
};
