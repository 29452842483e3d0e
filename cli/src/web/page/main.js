// The page: reads the address, asks the API, and shows the view. Every view has an address that can be sent.

import { cost } from "./cost.js";
import { el, fill, say } from "./dom.js";
import { events } from "./events.js";
import { clock, sentence, setNow } from "./format.js";
import { job, jobs } from "./jobs.js";
import { node, nodes } from "./nodes.js";
import { overview } from "./overview.js";
import { hash } from "./table.js";

const VIEWS = { overview, jobs, job, nodes, node, events, cost };
const NAV = [["overview", "Overview"], ["jobs", "Jobs"], ["nodes", "Nodes"], ["events", "Events"], ["cost", "Cost"]];
const PARENTS = { job: "jobs", node: "nodes" };
const $ = id => document.getElementById(id);

let round = 0;
let timer = null;
let every = 2000;
let lastView = null;

async function api(path, query = {}) {
  const params = new URLSearchParams(Object.entries(query).filter(([, v]) => v !== undefined && v !== ""));
  const answer = await fetch(`/api/${path}${params.size ? `?${params}` : ""}`, { cache: "no-store" });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error ?? answer.statusText);
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

function banner({ status, verdict }) {
  const wrong = status.checks.filter(c => c.level === "wrong");
  const looks = status.checks.filter(c => c.level === "look");
  const summary = `${verdict[0].toUpperCase()}${verdict.slice(1)}.`;
  if ($("summary").textContent !== summary) $("summary").textContent = summary;
  $("banner").className = status.well ? (looks.length ? "look" : "well") : "wrong";
  const line = c => el("li", { "data-key": `${c.what} ${c.to_do} ${c.level}` }, el("strong", null, c.what), " ", sentence(c.text), c.to_do && el("span", { class: "todo" }, " → ", sentence(c.to_do)));
  fill($("checks"), [
    ...(wrong.length ? [el("ul", { "data-key": "wrong" }, wrong.map(line))] : []),
    el("details", { "data-key": "all" }, el("summary", null, `${status.checks.length - wrong.length} other checks`),
      el("ul", null, [...looks, ...status.checks.filter(c => c.level === "well")].map(line))),
  ]);
}

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
  navigation(name);
  try {
    const seen = await api("overview");
    setNow(seen.now);
    every = seen.refresh_ms;
    const data = await view.load(api, params, seen);
    // The address has changed meanwhile.
    if (mine !== round) return;
    $("cluster").textContent = seen.cluster;
    document.title = `${view.title(data)} – ${seen.cluster} – nodekeeper`;
    banner(seen);
    fill($("content"), view.render(data, params).flat(Infinity).filter(Boolean));
    view.after?.(data);
    $("read").textContent = `as of ${clock(seen.now)}`;
    $("read").className = "soft";
    document.body.dataset.ready = address;
  } catch (error) {
    if (mine !== round) return;
    $("read").textContent = `no answer: ${error.message}`;
    $("read").className = "bad";
    if (lastView !== address) fill($("content"), [el("h1", { tabindex: "-1" }, "Nothing to show"), el("p", null, error.message), el("p", null, el("a", { href: "#/" }, "Overview"))]);
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
  const wanted = { ...params, ...Object.fromEntries(new FormData(form)), offset: "" };
  delete wanted.id;
  const to = hash(name === "overview" ? "" : name, wanted);
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
document.addEventListener("keydown", event => {
  const search = document.querySelector("input[type=search]");
  if (event.key !== "/" || !search || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName)) return;
  event.preventDefault();
  search.focus();
});
addEventListener("hashchange", () => {
  document.body.dataset.ready = "";
  refresh();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
