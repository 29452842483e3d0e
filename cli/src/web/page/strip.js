// The fleet as a strip: one line for each slot, and its last hours from left to right. Slots that need somebody come first.

import { colour } from "./chart.js";
import { el } from "./dom.js";
import { clock, several } from "./format.js";

// The place of the axis of the charts below, in pixels: the strip has the same times.
const LEFT = 62, RIGHT = 8;
const WORDS = { i: "idle", b: "booting", s: "silent", g: "going", " ": "no node" };
const PHASES = { i: "idle", b: "booting", s: "silent", g: "going" };
let shown = null;

const word = cell => WORDS[cell] ?? `working, ${Number(cell) * 10 + 5} % full`;
// Many slots share the height of a screen.
const height = n => n <= 12 ? 18 : n <= 30 ? 12 : n <= 100 ? 6 : n <= 300 ? 3 : 2;

export function strip(fleet) {
  const all = fleet.order.length;
  if (!all) return el("p", { class: "soft" }, "No node was there in this time.");
  const now = {};
  for (const slot of fleet.order) {
    const cell = fleet.slots[slot].at(-1), phase = PHASES[cell] ?? (cell === " " ? "gone" : "working");
    now[phase] = (now[phase] ?? 0) + 1;
  }
  const said = Object.entries(now).map(([phase, n]) => `${n} ${phase}`).join(", ");
  return el("figure", { class: "chart", "data-key": "strip" },
    el("figcaption", null, el("strong", null, several(all, "slot")), " ", el("span", { class: "soft", id: "strip-said", "data-own": true },
      "Each line is a slot; those that need somebody come first. Click one.")),
    el("canvas", { id: "strip", "data-own": true, role: "img", "aria-label": `The last hours of ${several(all, "slot")}. Now: ${said}.` }));
}

function at(canvas, event) {
  const { fleet } = canvas.strip;
  const box = canvas.getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top) / height(fleet.order.length));
  const slot = fleet.order[Math.max(0, Math.min(row, fleet.order.length - 1))];
  const cells = fleet.slots[slot];
  const n = Math.floor((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT) * cells.length);
  return { slot, cell: cells[n], from: fleet.from + n * fleet.part_ms };
}

export function drawStrip(fleet) {
  shown = fleet;
  const canvas = document.getElementById("strip");
  if (!canvas) return;
  if (!canvas.strip) {
    canvas.addEventListener("click", event => { location.hash = `#/node/${at(canvas, event).slot}`; });
    canvas.addEventListener("mousemove", event => {
      const { slot, cell, from } = at(canvas, event);
      document.getElementById("strip-said").textContent = cell === undefined ? `slot ${slot}` : `slot ${slot}: ${word(cell)} at ${clock(from)}`;
    });
    new ResizeObserver(() => shown && paint(canvas)).observe(canvas);
  }
  canvas.strip = { fleet };
  paint(canvas);
}

function paint(canvas) {
  const { fleet } = canvas.strip;
  const line = height(fleet.order.length), tall = line * fleet.order.length, ratio = devicePixelRatio || 1;
  const wide = canvas.parentElement.clientWidth - 2;
  canvas.style.height = `${tall}px`;
  [canvas.width, canvas.height] = [Math.max(1, wide * ratio), Math.max(1, tall * ratio)];
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const colours = Object.fromEntries(["working", "idle", "booting", "silent", "going", "soft", "bad"].map(name => [name, colour(name)]));
  const asks = new Set(fleet.asks);
  pen.font = "10px system-ui, sans-serif";
  pen.textBaseline = "middle";
  fleet.order.forEach((slot, row) => {
    const cells = fleet.slots[slot], y = row * line, step = (wide - LEFT - RIGHT) / cells.length;
    if (line >= 10 || asks.has(slot)) {
      pen.fillStyle = asks.has(slot) ? colours.bad : colours.soft;
      if (line >= 10) pen.fillText(`slot ${slot}`, 0, y + line / 2);
      else pen.fillRect(LEFT - 8, y, 5, line);
    }
    for (let n = 0; n < cells.length;) {
      let end = n + 1;
      while (cells[end] === cells[n]) end += 1;
      if (cells[n] !== " ") {
        pen.fillStyle = colours[PHASES[cells[n]] ?? "working"];
        // A node that works is the darker the fuller it is.
        pen.globalAlpha = PHASES[cells[n]] ? 1 : 0.35 + 0.065 * (Number(cells[n]) + 1);
        pen.fillRect(LEFT + n * step, y, (end - n) * step, line > 3 ? line - 1 : line);
        pen.globalAlpha = 1;
      }
      n = end;
    }
  });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && drawStrip(shown));
