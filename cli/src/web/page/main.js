// The page: reads the address, asks the API, and shows the view. Every view has an address that can be sent.

import { cost } from "./cost.js";
import { el, fill, say } from "./dom.js";
import { events } from "./events.js";
import { clock, now, sentence, setNow, several } from "./format.js";
import { job, jobs } from "./jobs.js";
import { node, nodes } from "./nodes.js";
import { overview } from "./overview.js";
import { anew } from "./table.js";

const VIEWS = { overview, jobs, job, nodes, node, events, cost };
const NAV = [["overview", "Overview"], ["jobs", "Jobs"], ["nodes", "Nodes"], ["events", "Events"], ["cost", "Cost"]];
const PARENTS = { job: "jobs", node: "nodes" };
const $ = id => document.getElementById(id);

let round = 0;
let timer = null;
let every = 2000;
let lastView = null;
// Of when what is shown is, when it came, and the address of which it is; why nothing newer came.
let shown = { at: null, came: Date.now(), of: null }, failure = "";
// What the view has read after the rest, and the address of which that is.
let kept = { of: null, data: {} };
// When this browser last left the page: what ended since then is told.
const LOOKED = "nodekeeper-looked";
let looked = since();
function since() {
  // A browser that stores nothing shows the page without it.
  try { return Number(localStorage.getItem(LOOKED)) || undefined; } catch { return undefined; }
}

async function api(path, query = {}) {
  const params = new URLSearchParams(Object.entries(query).filter(([, v]) => v !== undefined && v !== ""));
  const answer = await fetch(`/api/${path}${params.size ? `?${params}` : ""}`, { cache: "no-store", signal: AbortSignal.timeout(60_000) })
    .catch(() => { throw new Error("no answer: does nodekeeper web still run?"); });
  const value = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(value.error ?? answer.statusText), { status: answer.status });
  return value;
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, id] = path.split("/");
  const params = Object.fromEntries(new URLSearchParams(query ?? ""));
  let decoded = id ?? "";
  try { decoded = decodeURIComponent(decoded); } catch { /* It is no id then, and the API says so. */ }
  return { name: Object.hasOwn(VIEWS, name) ? name : "overview", params: { ...params, ...(id ? { id: decoded } : {}) } };
}

// All is well, or what is not: on the first view each note that asks for something, on the others how many there are.
function banner({ status, verdict }, name) {
  const asks = status.checks.filter(c => c.level !== "well");
  const summary = `${verdict[0].toUpperCase()}${verdict.slice(1)}.`;
  if ($("summary").textContent !== summary) $("summary").textContent = summary;
  $("banner").className = status.well ? (asks.length ? "look" : "well") : "wrong";
  const line = c => el("li", { class: c.level, title: `${c.what} ${c.text} ${c.to_do ?? ""}` },
    el("strong", null, c.what), " ", sentence(c.text), c.to_do && el("span", { class: "todo" }, " → ", sentence(c.to_do)));
  const notes = asks.length > 0 && el("ul", { "data-key": "asks" }, asks.map(line));
  const others = el("details", { "data-key": "all" }, el("summary", null, `${several(status.checks.length - asks.length, "check")} well`),
    el("ul", null, status.checks.filter(c => c.level === "well").map(line)));
  fill($("checks"), name === "overview" ? [notes, others].filter(Boolean)
    : asks.length ? [el("a", { href: "#/", "data-key": "notes" }, several(asks.length, "note"))] : []);
}

// A verdict must not outlive the answers: the page says that it is old, whether the answer is an error or never comes.
function age() {
  const old = failure !== "" || Date.now() - shown.came > Math.max(3 * every, 15_000);
  document.body.classList.toggle("old", old);
  $("read").className = old ? "bad" : "soft";
  if (!old || shown.at === null && !failure) return;
  const said = `Old: ${shown.at === null ? "" : `this is of ${clock(shown.at)}, and nothing newer came: `}${failure || "no answer yet"}`;
  if ($("summary").textContent !== said) $("summary").textContent = said;
  $("banner").className = "";
  document.title = `Old – ${document.title.replace(/^Old – /, "")}`;
}
setInterval(age, 1000);

function navigation(name) {
  const current = PARENTS[name] ?? name;
  fill($("nav"), [el("ul", null, NAV.map(([view, text]) => el("li", { "data-key": view },
    el("a", { href: `#/${view === "overview" ? "" : view}`, "aria-current": view === current ? "page" : null }, text))))]);
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++round;
  const { name, params } = route();
  const view = VIEWS[name];
  const address = `${name} ${params.id ?? ""}`;
  if (kept.of !== location.hash) kept = { of: location.hash, data: {} };
  navigation(name);
  let seen;
  try {
    seen = await api("overview", { since: looked });
    if (mine !== round) return;
    setNow(seen.now);
    every = seen.refresh_ms;
    const data = await view.load(api, params, seen);
    // The address has changed meanwhile.
    if (mine !== round) return;
    $("cluster").textContent = seen.cluster;
    [shown, failure] = [{ at: seen.now, came: Date.now(), of: location.hash }, ""];
    document.title = `${view.title(data)} – ${seen.cluster} – nodekeeper`;
    banner(seen, name);
    age();
    every = view.every?.(data) ?? every;
    const show = () => {
      const all = { ...data, ...kept.data };
      fill($("content"), view.render(all, params, looked).flat(Infinity).filter(Boolean));
      view.after?.(all);
    };
    show();
    if (view.later) {
      const later = await view.later(api, params, seen);
      if (mine !== round) return;
      kept.data = later;
      show();
    }
    $("read").textContent = `as of ${clock(seen.now)}`;
    document.body.dataset.ready = address;
  } catch (error) {
    if (mine !== round) return;
    // The API answered that this view has nothing to show, or nothing newer came. Rows of another address are never left there.
    const refused = seen && error.status < 500;
    if (refused) {
      shown.came = Date.now();
      banner(seen, name);
    }
    failure = refused ? "" : error.message;
    age();
    if (refused || shown.of !== location.hash) fill($("content"), [el("h1", { tabindex: "-1" }, "Nothing to show"), el("p", null, error.message), el("p", null, el("a", { href: "#/" }, "Overview"))]);
    document.body.dataset.ready = address;
  }
  if (lastView !== null && lastView !== address) {
    // A screen reader begins with the new view.
    scrollTo(0, 0);
    $("content").querySelector("h1")?.focus({ preventScroll: true });
  }
  lastView = address;
  if (!document.hidden) timer = setTimeout(refresh, every);
}

// A choice changes the address, and with it the view.
function changed(form, replace) {
  const { name, params } = route();
  const to = anew(name === "overview" ? "" : name, params, { ...Object.fromEntries(new FormData(form)), id: "" });
  if (to === location.hash) return;
  if (replace) {
    history.replaceState(null, "", to);
    refresh();
  } else {
    location.hash = to;
  }
}

let typing = null;
document.addEventListener("input", event => {
  if (event.target.type !== "search") return;
  clearTimeout(typing);
  typing = setTimeout(() => changed(event.target.form, true), 250);
});
document.addEventListener("change", event => {
  if (event.target.tagName === "SELECT" && event.target.form) changed(event.target.form, false);
});
document.addEventListener("submit", event => {
  event.preventDefault();
  changed(event.target, false);
});
document.addEventListener("click", async event => {
  const button = event.target.closest("[data-copy]");
  if (event.target.id === "skip") {
    event.preventDefault();
    $("content").focus();
  }
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    say(`copied ${button.dataset.copy}`);
  } catch {
    say("the browser does not let this page copy: select the id and copy it");
  }
});
// `/` searches, j and k go through the rows, Enter opens one, ? says so.
document.addEventListener("keydown", event => {
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  const step = { j: 1, k: -1 }[event.key];
  if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (!search) return;
    search.focus();
  } else if (step) {
    const links = [...$("content").querySelectorAll("tbody tr")].map(row => row.querySelector("a")).filter(Boolean);
    const at = links.findIndex(link => link.closest("tr").contains(document.activeElement));
    links[Math.max(0, Math.min(links.length - 1, at + step))]?.focus();
  } else if (event.key === "?") {
    $("keys").showModal();
  } else {
    return;
  }
  event.preventDefault();
});
addEventListener("hashchange", () => {
  // The search is that of the new address.
  if (document.activeElement?.type === "search") document.activeElement.blur();
  document.body.dataset.ready = "";
  refresh();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    try { localStorage.setItem(LOOKED, String(now())); } catch { /* This browser stores nothing. */ }
    return;
  }
  looked = since();
  refresh();
});
refresh();
