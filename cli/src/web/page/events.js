// The newest events. Those that only keep the house are folded.

import { el } from "./dom.js";
import { action, moment, several, subject } from "./format.js";
import { filters, pager, SIZE, table } from "./table.js";

const KINDS = [["", "all"], ["job,alloc", "jobs"], ["slot", "nodes"], ["function,cluster", "cluster and functions"]];

const rows = (events, withSubject) => table("Events, the newest first", [
  ["When", e => moment(e.at), "nowrap"],
  ...(withSubject ? [["Of", e => subject(e), "wide"]] : []),
  ["What", e => action(e.action), "nowrap"],
  ["Reason", e => e.reason, "text"],
], events, e => e.id + e.subject);

// Events, with those that only keep the house folded.
export function fold(events, withSubject = true) {
  const [told, folded] = [events.filter(e => !e.housekeeping), events.filter(e => e.housekeeping)];
  return [
    told.length ? rows(told, withSubject) : el("p", { class: "soft" }, "Nothing happened."),
    folded.length > 0 && el("details", { "data-key": "housekeeping" }, el("summary", null, `${several(folded.length, "housekeeping event")}`), rows(folded, withSubject)),
  ];
}

export const events = {
  title: () => "Events",
  load: (api, params) => api("events", { q: params.q, state: params.state, offset: params.offset, limit: SIZE }),
  render(part, params) {
    return [
      el("h1", { tabindex: "-1" }, "Events"),
      filters("events", params, KINDS, "id, name, action or reason"),
      fold(part.rows),
      pager("events", params, part, "event"),
      el("p", { class: "soft" }, "The newest 500 are here. ", el("code", null, "nodekeeper history SUBJECT"), " shows all that are kept of one subject."),
    ];
  },
};
