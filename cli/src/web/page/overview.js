// The first view: what needs somebody, what waits and why, what runs, and how the fleet was.

import { draw, places } from "./chart.js";
import { TIMES } from "./cost.js";
import { el } from "./dom.js";
import { fold } from "./events.js";
import { ago, chip, command, dollars, id, jobLink, look, nodeLink, sentence, several, short } from "./format.js";
import { columns } from "./jobs.js";
import { drawStrip, strip } from "./strip.js";
import { choice, hash, table } from "./table.js";

// A local cluster is rarely there for a day.
const usual = seen => seen.local ? "10" : "1440";
const FEW = 8;
const running = columns.filter(([head]) => ["Job", "Needs", "Nodes", "Submitted", "Why"].includes(head));

function tile(label, value, href, tone) {
  return el("a", { class: `tile ${tone ?? ""}`, href, "data-key": label }, el("span", { class: "value" }, value), el("span", { class: "label" }, label));
}

const count = (seen, states) => {
  const n = states.reduce((sum, state) => sum + (seen.counts[state] ?? 0), 0);
  return n.toLocaleString("en") + (states.some(state => seen.more.includes(state)) ? "+" : "");
};

// Failed jobs by cause and nodes that need somebody: what, why, and the command that looks closer.
function attention({ failed, causes, asking, asks, more }) {
  const least = more.includes("failed") ? "at least " : "";
  const rows = [
    ...failed.map(f => ({
      key: `cause ${f.cause}`, what: [chip(f.state), ` ${f.jobs > 1 ? least : ""}${several(f.jobs, "job")}`], href: jobLink(f.job_id, f.name ?? short(f.job_id)),
      why: [sentence(f.cause), f.last_line && el("code", { class: "line" }, f.last_line)], at: ago(f.at), run: look(f.job_id, f.last_line),
    })),
    ...asking.map(n => ({
      key: `slot ${n.slot}`, what: chip(n.state), href: nodeLink(n.slot), why: sentence(n.next ?? n.reason), at: n.heard_at ? ago(n.heard_at) : ago(n.assigned_at),
      run: `nodekeeper node ${n.slot}`,
    })),
  ];
  const cut = [causes > failed.length && `${causes - failed.length} more causes`, asks > asking.length && several(asks - asking.length, "more node")].filter(Boolean);
  return el("section", { "data-key": "attention" }, el("h2", null, "Needs somebody"), rows.length ? table("What needs somebody, failed jobs by cause first", [
    ["What", r => r.what, "nowrap"], ["Newest", r => r.href, "newest"], ["Why", r => r.why, "text"], ["When", r => r.at, "nowrap"], ["Look closer", r => command(r.run), "nowrap"],
  ], rows, r => r.key) : el("p", { class: "soft" }, "No job failed, and no node is silent or late."), cut.length > 0 && el("p", { class: "soft" }, `and ${cut.join(", and ")}: `, el("a", { href: "#/jobs?state=failed,rejected" }, "jobs"), ", ", el("a", { href: "#/nodes" }, "nodes")));
}

// Why jobs wait and nodes stay, each reason once.
function why({ waiting = [], staying = [], limits = [] }) {
  if (!waiting.length && !limits.length && !staying.length) return null;
  const line = (key, ...text) => el("li", { "data-key": key }, ...text);
  return el("section", { "data-key": "why" }, el("h2", null, "Waits, and why"), el("ul", { class: "why-list" },
    limits.map(l => line(`limit ${l.word} ${l.reason}`, el("strong", null, "limit "), l.reason)),
    waiting.slice(0, FEW).map(w => line(`job ${w.job_id}`, el("a", { href: `#/job/${w.job_id}` }, w.jobs === 1 ? "1 job" : several(w.jobs, "job")), ": ", sentence(w.reason))),
    waiting.length > FEW && line("more", `and ${waiting.length - FEW} more reasons`),
    staying.slice(0, FEW).map(n => line(`slot ${n.slot}`, nodeLink(n.slot), " stays: ", sentence(n.reason))),
    staying.length > FEW && line("more-nodes", `and ${several(staying.length - FEW, "more node")}`)));
}

// Whose turn it is: the first share with a waiting job is next.
function turns(shares) {
  const percent = part => `${Math.round(100 * part)} %`;
  const within = (has, most) => most === undefined ? has : `${has} of ${most}`;
  const next = shares.find(s => s.waiting > 0);
  return el("section", { "data-key": "shares" }, el("div", { class: "row" }, el("h2", null, "Shares"), el("a", { href: hash("cost", { by: "share" }) }, "what each cost")), table("Shares, by whose turn it is", [
    ["Share", s => [el("a", { href: hash("jobs", { share: s.share }) }, s.share), s === next && el("span", { class: "soft" }, " comes next")]],
    ["Used", s => `${percent(s.used)} of its ${percent(s.part)}`, "n"], ["Weight", s => s.weight, "n"],
    ["Running", s => within(s.placed, s.limits.running), "n"], ["Waiting", s => s.waiting.toLocaleString("en") + (s.more_wait ? "+" : ""), "n"],
    ["An hour", s => within(dollars(s.dollars_per_hour), s.limits.dollars_per_hour && dollars(s.limits.dollars_per_hour)), "n"], ["This month", s => dollars(s.dollars_this_month), "n"],
  ], shares, s => s.share));
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

// What ended since the page was last left.
function since({ ended }, looked) {
  if (!ended || !looked || ended.failed + ended.complete === 0) return null;
  const more = ended.at_least ? "at least " : "";
  return el("p", { class: "soft", "data-key": "since" }, "Since you looked, ", ago(looked), `: ${more}${ended.failed.toLocaleString("en")} failed, ${more}${ended.complete.toLocaleString("en")} complete.`);
}

export const overview = {
  title: () => "Overview",
  async load(api, params, seen) {
    const [live, events, extra] = await Promise.all([
      api("jobs", { state: "placing,placed,regrouping", limit: FEW }), api("events", { limit: 40 }), seen.local ? api("local") : null,
    ]);
    return { live, events, extra, seen };
  },
  // The past may take a while.
  async later(api, params, seen) {
    const minutes = params.minutes ?? usual(seen);
    const [past, fleet] = await Promise.all([api("history", { minutes }), api("fleet", { minutes })]);
    return { past, fleet };
  },
  render({ live, events, past, fleet, extra, seen }, params, looked) {
    const { jobs, nodes, price_per_hour } = seen.status;
    const busy = ["placing", "placed", "regrouping"], bad = ["failed", "rejected"];
    const up = Object.entries(nodes).filter(([state]) => state !== "cleaned").reduce((sum, [, n]) => sum + n, 0);
    const runs = busy.reduce((sum, state) => sum + (jobs[state] ?? 0), 0);
    return [
      el("h1", { class: "sr", tabindex: "-1" }, "Overview"),
      el("div", { class: "tiles" },
        tile("running", runs.toLocaleString("en"), hash("jobs", { state: busy.join() }), runs ? "cool" : ""),
        tile("failed or rejected", count(seen, bad), hash("jobs", { state: bad.join() }), bad.some(state => seen.counts[state]) ? "bad" : ""),
        tile("waiting", count(seen, ["queued"]), hash("jobs", { state: "queued" })),
        tile("complete", count(seen, ["complete"]), hash("jobs", { state: "complete" }), seen.counts.complete ? "good" : ""),
        tile(`of ${several(up, "node")} ready`, (nodes.ready ?? 0).toLocaleString("en"), "#/nodes", nodes.ready ? "good" : ""),
        tile("an hour, by list prices", dollars(price_per_hour), "#/cost")),
      since(seen, looked),
      attention(seen),
      seen.shares && turns(seen.shares),
      why(seen.explained ?? {}),
      el("section", { "data-key": "Running" }, el("h2", null, "Running", live.total > 0 && ` (${live.total.toLocaleString("en")})`),
        live.rows.length ? table("Running", running, live.rows, j => j.job_id)
          : el("p", { class: "soft" }, "No job runs.", live.all === 0 && [" Submit one: ", el("code", null, "nodekeeper run -- echo hello")]),
        live.total > live.rows.length && el("p", null, el("a", { href: hash("jobs", { state: busy.join() }) }, `all ${live.total.toLocaleString("en")}`))),
      el("section", { "data-key": "time" }, el("div", { class: "row" }, el("h2", null, "The fleet"), el("a", { href: hash("cost", { by: "person" }) }, "what each person cost"), choice("overview", params, "minutes", "Time", TIMES, usual(seen))),
        fleet ? el("div", { class: "charts", "data-key": "charts" }, strip(fleet), places(past)) : el("p", { class: "soft", "data-key": "soon" }, "The past is being read …")),
      el("section", { "data-key": "events" }, el("h2", null, "What happened"), fold(events.rows), el("p", { class: "pager" }, el("a", { href: "#/events" }, "more events"), el("a", { href: hash("events", { state: "function,cluster" }) }, "of the cluster alone"))),
      extra && local(extra, seen.purposes),
    ];
  },
  after({ past, fleet }) {
    if (!fleet) return;
    draw(past);
    drawStrip(fleet);
  },
};
