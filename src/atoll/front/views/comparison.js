// Why not an existing device: figures of both, and a waterfall from its step to the answer's.

import { stackedBars } from "../base/bars.js";
import { tone } from "../base/colours.js";
import { h, legend, s, scroller, section, table } from "../base/dom.js";
import { number, seconds, signed } from "../base/units.js";

const NARROW = 600;

/** Every bar starts where the one above ends; the first and the last are whole steps. In a narrow
    window the labels are above the bars. */
function waterfall(name, { step_time_s: first, answer_step_time_s: last, waterfall: changes }) {
  const narrow = innerWidth < NARROW, top = narrow ? 18 : 0;
  const [LEFT, WIDE, RIGHT, ROW] = narrow ? [0, 250, 90, 44] : [400, 420, 150, 26];
  const most = Math.max(first, last, ...changes.map((bar) => bar.step_time_s));
  const x = (value) => LEFT + (WIDE * value) / most;
  const rows = [
    { label: name, from: 0, to: first, fill: "grey", words: seconds(first) },
    ...changes.map((bar) => ({
      label: `${bar.change}: ${bar.before} → ${bar.after}`, from: bar.step_time_s - bar.added_s, to: bar.step_time_s,
      fill: bar.added_s > 0 ? "vermilion" : "green", words: signed(seconds, bar.added_s), layout: bar.layout,
    })),
    { label: "this chip", from: 0, to: last, fill: "blue", words: seconds(last) },
  ];
  const drawn = rows.flatMap(({ label, from, to, fill, words, layout }, i) => {
    const y = i * ROW, low = Math.min(from, to), high = Math.max(from, to);
    return [
      s("text", { x: Math.max(0, LEFT - 10), y: y + 17, "text-anchor": narrow ? "start" : "end", class: from ? "" : "strong" }, label),
      s("rect", { x: x(low), y: y + top + 4, width: Math.max(1, x(high) - x(low)), height: 18, fill: tone(fill), class: "waterfall-bar",
        tip: `${label}: ${words}, then ${seconds(to)} per step${layout ? ` (${layout})` : ""}` }),
      !narrow && i + 1 < rows.length && s("path", { d: `M${x(to)} ${y + top + 4}v${ROW}`, stroke: tone("mid"), fill: "none" }),
      s("text", { x: x(high) + 8, y: y + top + 17 }, words),
    ].filter(Boolean);
  });
  return s("svg", { class: narrow ? "whole" : "large", viewBox: `0 0 ${LEFT + WIDE + RIGHT} ${rows.length * ROW + 4}`, role: "img",
    "aria-label": rows.map(({ label, words }) => `${label} ${words}`).join("; ") }, drawn);
}

function faster({ step_time_s: device, answer_step_time_s: chip, described_step_time_s: described }) {
  const same = described ? ` (${(described / chip).toFixed(2)} times with the chip's software and cost model for both)` : "";
  return `this chip is ${(device / chip).toFixed(2)} times as fast${same}`;
}

export const comparisonView = ({ comparison }) =>
  section("comparison", "Why not an existing device?", "One thing changes after another, each change keeps those above it, and every "
    + "step has its best layout. The bars depend on this order, their sum does not. “Cost model” is the difference between "
    + "kernels measured on the device and the same device described as a chip of the template.",
  Object.entries(comparison).map(([name, found]) => h("div", { id: `comparison-${name}` }, [
    h("h3", {}, `${name}: ${found.step_time_s ? faster(found) : found.remark}`),
    table(["", ...found.figures.map((figure) => `${figure.name}, ${figure.unit}`)], [
      [name, ...found.figures.map((figure) => number(figure.device))],
      ["this chip", ...found.figures.map((figure) => number(figure.answer))],
    ]),
    found.step_time_s && [
      stackedBars([name, "this chip"].map((row, i) => ({ name: row, about: i ? "" : found.layout,
        parts: Object.fromEntries(Object.entries(found.classes_s).map(([part, both]) => [part, both[i]])) })), seconds),
      h("p", { class: "muted" }, `In the template: ${found.described}.`),
      scroller("Waterfall, scrolls sideways", waterfall(name, found)),
      legend([[tone("green"), "faster"], [tone("vermilion"), "slower"]]),
    ],
  ])));
