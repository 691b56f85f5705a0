// One layer's operators over time: on the cores of a chip, or one after the other on a device.

import { tone } from "../base/colours.js";
import { choice, h, legend, redrawn, s, section } from "../base/dom.js";
import { percent, seconds, ticks } from "../base/units.js";

const LIMITS = { tensor: "blue", vector: "orange", hbm: "green", glb: "pink", link: "vermilion", matrix: "blue", attention: "sky" };
const LEFT = 118;

const limitColour = (name) => tone(LIMITS[name] ?? "grey");

/** Which cores an operator takes: the lowest that are free, as ranges [first, count]. */
function coreRanges(operators, total, wanted) {
  const until = new Float64Array(total);
  const found = new Map();
  const order = operators.map((_, i) => i).filter((i) => wanted(operators[i]) > 0).sort((a, b) => operators[a][2] - operators[b][2]);
  for (const i of order) {
    const [, , start, length] = operators[i];
    let left = wanted(operators[i]);
    const ranges = [];
    for (let core = 0; core < total && left > 0; core++) {
      if (until[core] > start * (1 + 1e-9) + 1e-15) continue;
      until[core] = start + length;
      left--;
      const last = ranges.at(-1);
      if (last && last[0] + last[1] === core) last[1]++;
      else ranges.push([core, 1]);
    }
    found.set(i, ranges);
  }
  return found;
}

/** Lanes of the picture: {name, total cores, height, ranges of cores by operator}. */
function bandsOf({ operators }, cores) {
  const band = (name, total, height, wanted) => operators.some((op) => wanted(op) > 0)
    ? [{ name, total, height, ranges: coreRanges(operators, total, wanted) }] : [];
  if (!cores) {
    return ["matrix", "attention", "vector", "link"].flatMap((lane) =>
      band(lane === "link" ? "collectives" : `${lane} kernels`, 1, 30, (op) => (op[1] === lane ? 1 : 0)));
  }
  return [
    ...band(`${cores.tensor} tensor cores`, cores.tensor, 130, (op) => op[4]),
    ...band(`${cores.vector} vector cores`, cores.vector, 90, (op) => op[5]),
    ...band("network port", 1, 26, (op) => (op[1] === "link" ? 1 : 0)),
    ...band("memory alone", 1, 26, (op) => (op[4] + op[5] === 0 && op[1] !== "link" ? 1 : 0)),
  ];
}

function bandShapes(band, entry, y, fx, used) {
  const words = band.name.split(" ");
  const shapes = [
    s("rect", { x: LEFT, y, width: fx(entry.makespan_s) - LEFT, height: band.height, fill: tone("idle") }),
    ...words.map((word, k) => s("text", { class: "muted", x: LEFT - 8, "text-anchor": "end",
      y: y + band.height / 2 + 4 + 14 * (k - (words.length - 1) / 2) }, word)),
  ];
  for (const [i, ranges] of band.ranges) {
    const [name, core, start, length, tensor, vector, limit] = entry.operators[i];
    const kind = limit || core;
    used.add(kind);
    const tip = [name, `${seconds(length)} from ${seconds(start)}`, limit && `limited by ${limit}`,
      tensor && `${tensor} tensor cores`, vector && `${vector} vector cores`].filter(Boolean).join("\n");
    let tall = 0, at = 0;
    for (const [first, many] of ranges) {
      const height = (band.height * many) / band.total, top = y + (band.height * first) / band.total;
      shapes.push(s("rect", { class: "op", x: fx(start), y: top, width: Math.max(1, fx(length) - fx(0)), height: Math.max(1, height),
        fill: limitColour(kind), stroke: tone("card"), "stroke-width": height > 4 ? 1 : 0, tip }));
      if (height > tall) { tall = height; at = top + height / 2; }
    }
    if (tall >= 14 && fx(length) - fx(0) - 8 > name.length * 6.6) shapes.push(s("text", { class: "on", x: fx(start) + 5, y: at + 4 }, name));
  }
  return shapes;
}

export function scheduleView({ models }) {
  const { cores } = models[0];
  const entries = models.flatMap((model) => model.layers.map((entry) => [model, entry]));
  const layer = choice("schedule-layer", entries.map(([model, entry], i) => [i,
    `${models.length > 1 ? `${model.model}: ` : ""}${entry.layer}${entry.repeat > 1 ? ` (×${entry.repeat})` : ""}, ${entry.pass}`]),
  Math.max(0, entries.findIndex(([, entry]) => entry.repeat > 1)));
  const about = h("p", { class: "muted", id: "schedule-about" }), keys = h("div");
  const plot = h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Schedule" });

  function paint() {
    const [model, entry] = entries[Number(layer.value)];
    about.textContent = `Takes ${seconds(entry.makespan_s)}`
      + `${entry.gap == null ? "" : `; proven within ${percent(entry.gap, 2)} (bound: ${entry.bound})`}.`;
    const bands = bandsOf(entry, model.cores);
    const width = Math.max(620, plot.clientWidth), right = width - 14;
    const fx = (v) => LEFT + ((right - LEFT) * v) / entry.makespan_s;
    const shapes = [], used = new Set();
    let y = 4;
    for (const band of bands) {
      shapes.push(...bandShapes(band, entry, y, fx, used));
      y += band.height + 10;
    }
    for (const v of ticks(0, entry.makespan_s, 8)) {
      shapes.push(s("path", { d: `M${fx(v)} ${y - 6}v5`, stroke: tone("mid") }));
      if (fx(v) < right - 20) shapes.push(s("text", { class: "muted", x: fx(v), y: y + 14, "text-anchor": "middle" }, seconds(v)));
    }
    plot.replaceChildren(s("svg", { width, height: y + 36, id: "schedule-picture", role: "img", "aria-label": `${entry.layer} ${entry.pass}` }, shapes));
    keys.replaceChildren(legend(Object.keys(LIMITS).filter((name) => used.has(name)).map((name) =>
      [limitColour(name), cores ? `limited by ${name}` : name === "link" ? "collectives" : `${name} kernels`])));
  }
  layer.addEventListener("input", paint);
  redrawn(plot, paint);
  return section("schedule", cores ? "A layer’s schedule on the cores" : "Operators of a layer", cores
    ? "Each block is one operator: its width is time, its height the cores that it uses, its colour what limits it."
    : "Operators in the order in which a device runs them. Collectives are shown without overlap.",
  h("div", { class: "row controls" }, h("label", {}, "Layer ", layer)), about, plot, keys);
}
