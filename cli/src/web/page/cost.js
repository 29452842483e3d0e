// What the nodes cost, and for whom.

import { el } from "./dom.js";
import { ago, dollars, id, jobLink, several, span } from "./format.js";
import { choice, table } from "./table.js";

export const TIMES = [["10", "the last 10 minutes"], ["60", "the last hour"], ["360", "the last 6 hours"], ["1440", "the last 24 hours"], ["10080", "the last 7 days"]];
const hours = s => s < 3600 ? span(s * 1000) : `${(s / 3600).toFixed(2)} h`;

const COLUMNS = {
  job: [["Job", l => [el("div", { class: "name" }, jobLink(l.what, l.name ?? l.what)), id(l.what)], "wide"]],
  name: [["Name", l => l.what === "(no name)" ? l.what : el("a", { href: `#/jobs?${new URLSearchParams({ q: l.what })}` }, l.what), "wide"], ["Jobs", l => l.count, "n"]],
  person: [["Person", l => el("a", { href: `#/jobs?${new URLSearchParams({ q: l.what })}` }, l.what), "wide"], ["Jobs", l => l.count, "n"]],
  share: [["Share", l => l.what, "wide"], ["Jobs", l => l.count, "n"]],
  reason: [["Reason", l => l.what, "wide"], ["Nodes", l => l.count, "n"]],
  label: [["Label", l => l.what, "wide"], ["Jobs", l => l.count, "n"]],
  size: [["Size", l => l.what], ["Market", l => (l.market ?? "").replace("_", " ")], ["Price an hour", l => l.price_per_hour === undefined ? "not known" : dollars(l.price_per_hour), "n"],
    ["Nodes", l => l.count, "n"]],
};

export const cost = {
  title: () => "Cost",
  load: (api, params) => api("cost", { minutes: params.minutes, by: params.by }),
  render(report, params) {
    const by = params.by ?? "name";
    return [
      el("h1", { tabindex: "-1" }, "Cost"),
      el("p", null, el("strong", null, dollars(report.total_usd)), ` for ${several(report.nodes, "node")} and ${hours(report.node_s)} of node time. Of this, `,
        el("strong", null, dollars(report.without_work_usd)), ` is for ${hours(report.without_work_node_s)} without work: booting, idle, silent or going.`),
      el("p", { class: "soft" }, `This is ${report.estimate}.`,
        report.unpriced_nodes > 0 && ` The price of ${several(report.unpriced_nodes, "node")} is not known, and counts nothing.`,
        report.is_cut && " Only the newest jobs fit into memory: the true sums are higher."),
      el("div", { class: "row" }, choice("cost", params, "minutes", "Time", TIMES, "1440"),
        choice("cost", params, "by", "By", [["name", "name"], ["job", "job"], ["person", "person"], ["share", "share"], ["size", "size"], ["reason", "reason"], ...(by.startsWith("label:") ? [[by, by]] : [])], "name")),
      report.lines.length ? table("What it cost, the most expensive first", [...COLUMNS[by.split(":")[0]], ["Began", l => ago(l.from), "nowrap"],
        ["Node time", l => hours(l.node_s), "n"], ["Cost", l => dollars(l.usd), "n"]], report.lines, l => `${l.what} ${l.market} ${l.price_per_hour}`)
        : el("p", { class: "soft" }, "No job used a node in this time."),
    ];
  },
};
