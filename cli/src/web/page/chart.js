// Charts over time. uPlot draws them; the numbers are also there as a table.

import { el } from "./dom.js";
import { clock, day, dollars, moment, span } from "./format.js";
import { table } from "./table.js";

// The lowest in the chart first.
const PHASES = ["working", "idle", "booting", "silent", "going"];
const HEIGHT = 84;
const charts = new Map();
let shown = null;

// The colour that a name of the style sheet means now, light or dark.
export function colour(name) {
  const probe = el("span", { css: { color: `var(--${name})` }, hidden: true });
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
const number = n => n >= 10 || Number.isInteger(n) ? Math.round(n).toLocaleString("en") : n.toFixed(1);
const most = values => values.reduce((a, b) => Math.max(a, b), 0);
const last = values => values[values.length - 1] ?? 0;

// What the charts need of an answer of the API.
function prepared(series) {
  const at = series.waiting.map((_, n) => (series.from + n * series.part_ms) / 1000);
  const nodes = new Map(series.nodes);
  const raw = PHASES.map(phase => nodes.get(phase) ?? at.map(() => 0));
  let sum = at.map(() => 0);
  const stacked = raw.map(values => (sum = sum.map((s, n) => s + values[n])));
  const charts = [
    { key: "nodes", title: "Nodes", at, names: PHASES, colours: PHASES, raw, drawn: stacked, say: number },
    { key: "queue", title: "Waiting jobs", at, names: ["waiting"], colours: ["queue"], raw: [series.waiting], drawn: [series.waiting], say: number },
    { key: "money", title: "Dollars an hour", at, names: ["an hour"], colours: ["money"], raw: [series.usd_per_hour], drawn: [series.usd_per_hour], say: dollars },
  ];
  return charts.map(chart => ({ ...chart, part_ms: series.part_ms }));
}

const inWords = chart => `${chart.title}: ${chart.names.map((name, n) =>
  `${name} now ${chart.say(last(chart.raw[n]))}, at most ${chart.say(most(chart.raw[n]))}`).join("; ")}`;

// The places of the charts, and the numbers as a table of at most 24 rows.
export function places(series) {
  const list = prepared(series);
  const step = Math.max(1, Math.ceil(list[0].at.length / 24));
  const rows = list[0].at.map((_, n) => n).filter(n => n % step === 0).reverse();
  return [
    list.map(chart => el("figure", { class: "chart", "data-key": chart.key },
      el("figcaption", null, el("strong", null, chart.title), el("ul", { class: "legend", "data-own": true, id: `legend-${chart.key}` })),
      el("div", { class: "plot", role: "img", "data-own": true, id: `chart-${chart.key}`, "aria-label": inWords(chart) }))),
    el("details", { "data-key": "numbers" }, el("summary", null, "The numbers"),
      table("Means over time, the newest first", [["From", n => moment(series.from + n * series.part_ms), "nowrap"],
        ...list.flatMap(chart => chart.names.map((name, k) => [chart.names.length > 1 ? name : chart.title, n => chart.say(chart.raw[k][n]), "n"]))],
      rows, n => `${n}`)),
  ];
}

function legend(chart, at) {
  const place = document.getElementById(`legend-${chart.key}`);
  const n = at ?? chart.at.length - 1;
  const when = at === null ? `mean of the last ${span(chart.part_ms)}` : `from ${clock(chart.at[n] * 1000)}`;
  place?.replaceChildren(...chart.names.map((name, k) => el("li", null,
    el("span", { class: `swatch ${chart.colours[k]}`, "aria-hidden": "true" }), ` ${name} ${chart.say(chart.raw[k][n] ?? 0)}`)), el("li", { class: "soft" }, when));
}

function made(chart, place) {
  const long = (last(chart.at) - chart.at[0]) > 86400 * 1.5;
  const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const state = { chart };
  // The highest sum is drawn first, and the others over it.
  const order = chart.drawn.map((_, k) => k).reverse();
  const options = {
    width: Math.max(200, place.clientWidth), height: HEIGHT, legend: { show: false },
    cursor: { sync: { key: "time" }, y: false, points: { show: false }, drag: { x: false, y: false } },
    scales: { x: { time: true }, y: { range: (_, __, max) => [0, Math.max(max * 1.1, chart.key === "money" ? 0.01 : 1)] } },
    axes: [
      { ...axis, size: 26, space: 70, values: (_, at) => at.map(s => long ? day(s * 1000).slice(5) : clock(s * 1000).slice(0, 5)) },
      { ...axis, size: 62, space: 36, values: (_, values) => values.map(v => chart.key === "money" ? dollars(v) : Number.isInteger(v) ? number(v) : "") },
    ],
    series: [{}, ...order.map(k => ({
      label: chart.names[k], stroke: colour(chart.colours[k]), fill: colour(chart.colours[k]), width: 0, points: { show: false },
      paths: uPlot.paths.bars({ size: [0.92, 100], align: 1 }),
    }))],
    hooks: { setCursor: [u => legend(state.chart, u.cursor.idx ?? null)] },
  };
  state.plot = new uPlot(options, data(chart), place);
  state.observer = new ResizeObserver(() => {
    if (place.clientWidth > 0) state.plot.setSize({ width: place.clientWidth, height: HEIGHT });
  });
  state.observer.observe(place);
  return state;
}

const data = chart => [chart.at, ...chart.drawn.map((_, k) => k).reverse().map(k => chart.drawn[k])];

function forget(key) {
  const state = charts.get(key);
  state?.observer.disconnect();
  state?.plot.destroy();
  charts.delete(key);
}

// Draws the charts in their places, or brings them up to date.
export function draw(series) {
  shown = series;
  for (const chart of prepared(series)) {
    const place = document.getElementById(`chart-${chart.key}`);
    if (!place) {
      forget(chart.key);
      continue;
    }
    const known = charts.get(chart.key);
    const fits = known && known.plot.root.parentNode === place && known.chart.at.length === chart.at.length
      && Math.abs(last(known.chart.at) - known.chart.at[0] - (last(chart.at) - chart.at[0])) < 60;
    if (fits) {
      known.chart = chart;
      known.plot.setData(data(chart));
    } else {
      forget(chart.key);
      charts.set(chart.key, made(chart, place));
    }
    legend(chart, null);
  }
}

// The colours of the charts are not those of the style sheet by themselves.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  [...charts.keys()].forEach(forget);
  if (shown) draw(shown);
});
