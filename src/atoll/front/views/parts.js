// Where the time goes, what memory holds, baselines, reasons, and what a little more would be worth.

import { plainBar, sidedBar, stackedBars } from "../base/bars.js";
import { tone } from "../base/colours.js";
import { h, section, table } from "../base/dom.js";
import { bytes, joules, number, percent, seconds, signed } from "../base/units.js";

export function timesView({ times, models }) {
  const energies = models.filter((model) => Object.keys(model.energy_J).length);
  return section("time", "Where the time goes", "One training step by cause: the answer and its alternatives. The key has the shares of the first bar.",
    times.map((group) => [times.length > 1 ? h("h3", {}, group.title) : null, stackedBars(group.rows, seconds)]),
    energies.map((model) => [
      h("h3", {}, `Energy of a step${models.length > 1 ? `: ${model.model}` : ""}, all devices`),
      stackedBars([{ name: "best", parts: model.energy_J }], joules),
    ]));
}

export const memoryView = ({ models }) =>
  section("memory", "Memory of a device, by stage", "Bytes on the fullest device of every pipeline stage; the line marks its capacity.",
    models.map(({ model, memory }) => [models.length > 1 ? h("h3", {}, model) : null,
      stackedBars(memory.stages.map(({ name, layers, parts }) => ({ name, about: layers.join(", "), parts })), bytes, memory.capacity_bytes)]));

/** `answer`: what this answer is called, and its score; `others`: {name, score or null, remark}. */
export function baselinesView([name, score], others, unit) {
  const rows = [{ name, score, own: true }, ...others];
  const most = Math.max(...rows.map((row) => row.score ?? 0));
  return section("baselines", "Baselines", "Evaluated with the same cost model.", table(["baseline", unit, "speedup", ""], rows.map((row) => [
    row.name, row.score ? number(row.score, 5) : "does not fit", row.score ? `${(score / row.score).toFixed(2)}×` : "",
    [plainBar((row.score ?? 0) / most, tone(row.own ? "blue" : "vermilion")), row.remark ? h("div", { class: "muted" }, row.remark) : null],
  ]), { id: "baseline-table", class: "wrap barred" }));
}

export const reasonsView = ({ reasons }) =>
  section("why", "Why this layout", "For every degree: the best layout with another value, and how much slower it is.", h("ul", {}, reasons.map((reason) => h("li", {}, reason))));

export function sensitivityView({ sensitivity: found }) {
  const sides = found.rows.flatMap((row) => [[row.what, row.more], ["", row.less]]).filter(([, side]) => side.change);
  const capped = (side) => (side.capped_gain === null ? "" : `; ${signed((v) => percent(v), side.capped_gain)} at ${number(side.capped_GHz, 3)} GHz`);
  const most = Math.max(1e-9, ...sides.map(([, side]) => Math.abs(side.gain ?? 0)));
  const mm2 = (side) => (Math.abs(side.area_mm2) < 1e-9 ? "–" : `${signed((v) => number(v, 3), side.area_mm2)} mm²`);
  return section("sensitivity", "Sensitivity", found.per_mm2
    ? "Throughput of the best chip with the next larger and smaller value of one part, evaluated in full: tilings and layout may change "
      + "too. Bandwidths of HBM and links change without area, so that they have no figure per mm². The last column says what stops it."
    : "Throughput of the same layout with one rate of the machine changed.",
  table(["part", "change", "throughput", "", ...(found.per_mm2 ? ["area", `${found.unit} per mm²`, "power", "not chosen"] : [])], sides.map(([what, side]) => [
    what, side.change.replace("-", "−"), side.gain === null ? "does not fit" : signed((v) => percent(v, 2), side.gain), sidedBar((side.gain ?? 0) / most),
    ...(found.per_mm2 ? [mm2(side), number(side.per_mm2, 3), `${signed((v) => number(v, 3), side.power_W)} W`, `${side.stopped_by}${capped(side)}`] : []),
  ]), { id: "sensitivity-table", class: "barred" }));
}
