// Tables, filters and parts of a list. On a narrow screen each row becomes a card. The roles are said, because a table
// that is shown otherwise is no table for a screen reader any more.

import { el } from "./dom.js";
import { several } from "./format.js";

// `columns`: [head, cell of a row, class, field, width in %]. The first column names the row. With a `list`, its view and its parameters, the
// heads of columns with a field sort it.
export function table(caption, columns, rows, key, list) {
  const head = el("tr", { role: "row" }, columns.map(([name, , cls, field, width]) => el("th", { scope: "col", role: "columnheader", class: cls,
    css: { width: list && width ? `${width}%` : "" }, "aria-sort": list && field ? order(field, list) : null }, list && field ? sorted(name, field, list) : name)));
  const body = rows.map((row, n) => el("tr", { role: "row", "data-key": key ? key(row) : String(n) }, columns.map(([name, cell, cls], at) => {
    const content = cell(row);
    return at === 0
      ? el("th", { scope: "row", role: "rowheader", class: cls, "data-head": name }, content)
      : el("td", { role: "cell", class: cls, "data-head": name }, content);
  })));
  return el("table", { role: "table", class: list ? "list" : null }, el("caption", { class: "sr" }, caption),
    el("thead", { role: "rowgroup" }, head), el("tbody", { role: "rowgroup" }, body));
}

// The head of a column that the list can be sorted by: up, then down, then as usual.
const order = (field, [, params]) => params.sort === field ? "ascending" : params.sort === `-${field}` ? "descending" : "none";
function sorted(name, field, list) {
  const is = order(field, list), [view, params] = list;
  const next = { none: field, ascending: `-${field}`, descending: "" }[is];
  return el("a", { href: anew(view, params, { sort: next }) }, name, { ascending: " ▲", descending: " ▼", none: "" }[is]);
}

export const hash = (view, params) => {
  const query = new URLSearchParams(Object.entries(params).filter(([, v]) => v !== "" && v !== null && v !== undefined));
  return `#/${view}${query.size ? `?${query}` : ""}`;
};

// The same list from its beginning, with these changes.
export const anew = (view, params, changes) => hash(view, { ...params, offset: "", after: "", ...changes });

export const SIZE = 100;

const select = (name, options, chosen) => el("select", { name }, options.map(([value, text]) => el("option", { value, selected: chosen === value }, text)));

// The search, the filter and the groups of a list. `states` and `groups`: [value, label].
export function filters(view, params, states, label, groups) {
  // A state of the address is a choice, too.
  if (!states.some(([state]) => state === (params.state ?? ""))) states = [...states, [params.state, params.state.replaceAll("_", " ")]];
  return el("form", { class: "filters", role: "search", "data-view": view, "data-key": `filters-${view}` },
    el("label", null, "Search ", el("input", { type: "search", name: "q", value: params.q ?? "", placeholder: label, autocomplete: "off" })),
    el("label", null, "Show ", select("state", states, params.state ?? "")),
    groups && el("label", null, "Each row is ", select("group", groups, params.group ?? "")));
}

export function pager(view, params, part, noun, line = noun) {
  const offset = part.offset, end = offset + part.rows.length;
  const to = at => hash(view, { ...params, offset: at > 0 ? at : "" });
  const least = part.more?.length > 0 ? "at least " : "";
  const shown = part.rows.length === 0 ? "none here" : `${offset + 1} to ${end} of ${least}${several(part.total, line)}`;
  const of = part.total < part.all ? `, ${least}${several(part.all, noun)} in all` : "";
  return el("nav", { class: "pager", "aria-label": "Parts of the list" },
    el("span", { role: "status" }, shown + of + (params.after ? ", behind those that are shown first" : "")),
    params.after && el("a", { href: anew(view, params) }, "first"),
    offset > 0 && el("a", { href: to(Math.max(0, offset - SIZE)), rel: "prev" }, "previous"),
    end < part.total ? el("a", { href: to(end), rel: "next" }, "next")
      : part.next && el("a", { href: anew(view, params, { after: part.next }), rel: "next" }, "next"));
}

// A choice that stands in the address.
export function choice(view, params, name, label, options, usual) {
  return el("form", { class: "filters", "data-view": view, "data-key": `choice-${name}` },
    el("label", null, `${label} `, select(name, options, params[name] ?? usual)));
}

export const facts = pairs => el("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
  .map(([name, value]) => el("div", { "data-key": name }, el("dt", null, name), el("dd", null, value))));
