// The list of nodes, and one slot with its lives.

import { el } from "./dom.js";
import { action, ago, chip, command, dollars, id, jobLink, moment, nodeLink, past, sentence, span } from "./format.js";
import { fold } from "./events.js";
import { facts, filters, hash, pager, SIZE, table } from "./table.js";

const STATES = [["", "all"], ["ready", "ready"], ["assigned,syncing", "booting and syncing"], ["disconnected,down", "silent"],
  ["shutting_down", "shutting down"], ["cleaned", "free slots"]];

const work = n => [n.work.map((w, at) => [at ? ", " : "", jobLink(w.job_id, w.name ?? w.alloc_id)]), n.allocs > n.work.length && ` and ${n.allocs - n.work.length} more`];

export const columns = [
  ["Slot", n => nodeLink(n.slot), null, "slot", 6],
  ["State", n => [chip(n.state), n.intent && n.intent !== "run" ? ` ${n.intent}` : "", n.busy ? " busy" : ""], null, "state", 12],
  ["Size", n => n.size ? `${n.size} (${n.instance_type})` : "", null, "size", 13],
  ["Price an hour", n => n.price_per_hour === undefined ? "" : dollars(n.price_per_hour), "n", "price_per_hour", 9],
  ["Instance", n => n.instance_id ? id(n.instance_id) : "", null, null, 14],
  ["Runs", n => work(n), "wide", null, 14],
  ["Heard", n => past(n.heard_at), "nowrap", "heard_at", 8],
  ["Why", n => el("span", { title: n.next ?? n.reason }, sentence(n.next ?? n.reason)), "text"],
];

export const nodes = {
  title: () => "Nodes",
  load: (api, params) => api("nodes", { q: params.q, state: params.state, sort: params.sort, offset: params.offset, limit: SIZE }),
  render(part, params) {
    return [
      el("div", { class: "row" }, el("h1", { tabindex: "-1" }, "Nodes"), el("p", { class: "counts" }, Object.keys(part.counts).length ? Object.entries(part.counts).map(([state, n]) =>
        el("a", { href: hash("nodes", { state }), "data-key": state }, chip(state), ` ${n.toLocaleString("en")}`)) : "There was no node yet. A job that waits gets one.")),
      filters("nodes", params, STATES, "slot, id, size, job or reason"),
      part.total > 0 && table(params.sort ? "Nodes, sorted" : "Nodes by slot", columns, part.rows, n => String(n.slot), ["nodes", params]),
      pager("nodes", params, part, "slot"),
    ];
  },
};

// One life as a bar: each phase as wide as it was long.
function life(l) {
  const phases = l.phases.filter(p => p.to > p.from);
  const sums = {};
  for (const p of phases) sums[p.phase] = (sums[p.phase] ?? 0) + p.to - p.from;
  const said = Object.entries(sums).map(([phase, ms]) => `${phase} ${span(ms)}`).join(", ");
  return el("li", { "data-key": `${l.from}` },
    el("p", null, l.size ?? "size not known", ", from ", moment(l.from), l.to ? [" to ", moment(l.to)] : ", until now", l.node_id ? [" ", id(l.node_id)] : ""),
    el("div", { class: "bar", role: "img", "aria-label": said || "before the time that is kept" },
      phases.map(p => el("span", { class: `part ${p.phase}`, css: { flexGrow: String(p.to - p.from) }, title: `${p.phase}: ${span(p.to - p.from)}` }))),
    el("p", { class: "soft" }, said));
}

export const node = {
  title: data => `slot ${data.slot}`,
  load: (api, params) => api(`nodes/${encodeURIComponent(params.id)}`),
  render(n) {
    const r = n.record;
    return [
      el("p", { class: "back" }, el("a", { href: "#/nodes" }, "All nodes")),
      el("h1", { tabindex: "-1" }, `Slot ${n.slot} `, chip(n.state)),
      n.next && el("p", { class: "why" }, sentence(n.next)),
      n.node_id && el("p", { class: "commands" }, [n.intent !== "run" && `nodekeeper resume ${n.slot}`, n.intent !== "drain" && `nodekeeper drain ${n.slot}`, n.intent !== "hold" && `nodekeeper hold ${n.slot}`].filter(Boolean).map(text => command(text))),
      el("section", { class: "card" }, el("h2", null, "What it is"), facts([
        ["Node", n.node_id ? id(n.node_id) : null], ["Last node", r.last_node_id ? id(r.last_node_id) : null], ["Instance", n.instance_id ? id(n.instance_id) : null],
        ["Reason", n.reason], ["Size", n.size ? `${n.size} (${n.instance_type}, ${n.market})` : null],
        ["Price an hour", n.price_per_hour === undefined ? null : dollars(n.price_per_hour)], ["Zone", r.zone], ["Address", r.address],
        ["Intent", n.intent], ["Assigned", ago(n.assigned_at)], ["First heard from", ago(r.first_ping_at)], ["Last heard from", past(n.heard_at)],
        ["Lease ends", r.lease_expires_at ? ago(r.lease_expires_at) : null], ["Idle since", ago(r.idle_since_at)], ["Refuses work", r.refuses],
        ["Runs", n.work.length ? work(n) : null],
      ])),
      el("section", null, el("h2", null, "Lives"), n.lives.length
        ? [legend(), el("ol", { class: "lives" }, n.lives.map(life))] : el("p", { class: "soft" }, "No event of the last 7 days is kept.")),
      el("section", null, el("h2", null, "Events"), el("p", { class: "soft" }, "The newest first."),
        fold(n.events, false)),
    ];
  },
};

export const legend = () => el("ul", { class: "legend" }, ["working", "idle", "booting", "silent", "going"].map(phase =>
  el("li", null, el("span", { class: `swatch ${phase}`, "aria-hidden": "true" }), " ", phase)));
