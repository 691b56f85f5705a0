// Parts of a whole, side by side, with a key that names every part.

import { h } from "./dom.js";
import { percent } from "./units.js";

const COLOURS = {
  compute: 0, recompute: 5, "tensor parallel": 1, transfers: 4, "pipeline sends": 4, "context parallel": 6,
  "expert parallel": 10, "sharded weights": 9, bubble: 7, "pipeline bubble": 7, "gradient reduction": 2, optimizer: 3,
  host: 8, weights: 0, gradients: 2, activations: 1, buffers: 4, logits: 6, transient: 5, guests: 10, reserve: 7,
};
const SHADES = 11;

/** A colour for every part of one chart, no two alike: its own where no part before has it, else one that is left. */
export function colours(names) {
  const chosen = new Map(), taken = new Set();
  const take = (name, shade) => { chosen.set(name, `var(--c${shade})`); taken.add(shade); };
  for (const name of names) if (name in COLOURS && !taken.has(COLOURS[name])) take(name, COLOURS[name]);
  const left = [...Array(SHADES).keys()].filter((shade) => !taken.has(shade));
  names.filter((name) => !chosen.has(name)).forEach((name, i) => take(name, left.length ? left[i % left.length] : i % SHADES));
  return chosen;
}

/** Rows of stacked bars on one scale. `rows`: [label, {part: value}]; `most`: what the full width is. */
export function stackedBars(rows, format, most = 0) {
  const names = [...new Set(rows.flatMap(([, parts]) => Object.keys(parts)))].filter((name) =>
    rows.some(([, parts]) => (parts[name] ?? 0) > 0));
  const sums = rows.map(([, parts]) => names.reduce((sum, name) => sum + Math.max(0, parts[name] ?? 0), 0));
  const whole = Math.max(most, ...sums, 1e-300);
  const colour = colours(names);
  return h("div", { class: "stack parts" },
    h("div", { class: "bars" }, rows.map(([label, parts], row) => [
      h("span", {}, label),
      h("div", { class: "stacked", role: "img", "aria-label": `${label}: ` + names.map((n) => `${n} ${format(parts[n] ?? 0)}`).join(", ") },
        names.map((name) => h("i", {
          title: `${name}: ${format(parts[name] ?? 0)}`,
          style: { width: `${(100 * Math.max(0, parts[name] ?? 0)) / whole}%`, background: colour.get(name) },
        }))),
      h("span", {}, format(sums[row])),
    ])),
    h("table", { class: "wrap" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Part"), rows.map(([label]) => h("th", { scope: "col" }, label)))),
      h("tbody", {}, names.map((name) => h("tr", {},
        h("td", {}, h("span", { class: "part" }, h("span", { class: "swatch", style: { background: colour.get(name) } }), name)),
        rows.map(([, parts], row) => h("td", {}, format(parts[name] ?? 0), " ",
          h("small", { class: "muted" }, percent(sums[row] ? (parts[name] ?? 0) / sums[row] : 0))))))),
    ));
}

/** Named values as bars from zero. */
export function plainBars(rows, format) {
  const most = Math.max(...rows.map(([, value]) => value ?? 0), 1e-300);
  return h("div", { class: "bars" }, rows.map(([label, value]) => [
    h("span", {}, label),
    h("div", { class: "track" }, h("i", { style: { width: `${(100 * (value ?? 0)) / most}%` } })),
    h("span", {}, value === null ? "does not fit" : format(value)),
  ]));
}

export const figures = (rows) =>
  h("dl", { class: "figures" }, rows.map(([name, value, unit, below]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, unit ? [" ", h("small", {}, unit)] : null, below ? h("small", { class: "below" }, below) : null))));
