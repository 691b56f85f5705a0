// Several answers: every figure as a chart, and tables of runs side by side.

import { chartOf } from "../base/chart.js";
import { nth } from "../base/colours.js";
import { choice, h, legend, section, table } from "../base/dom.js";

export const tableView = ({ title, heads, rows }, number) =>
  section(`table-${number}`, title, "", table(heads, rows, { class: "wrap wide" }));

const key = ({ lines }) => (Object.keys(lines).length > 1 ? legend(Object.keys(lines).map((name, i) => [nth(i), name])) : null);
const INTERVALS = "The pale or thin line through a value is its 90 % interval.";

/** Figures by name side by side; against numbers one at a time, chosen by the reader. */
export function chartsView({ charts }) {
  const about = charts.some((chart) => Object.values(chart.lines).flat().some((point) => point.high)) ? INTERVALS : "";
  if (charts[0].categories.length) {
    return section("charts", `Figures by ${charts[0].axis}`, about, h("div", { class: "charts" }, charts.map((chart) =>
      h("div", {}, h("h3", {}, chart.figure), chartOf(chart)))), key(charts[0]));
  }
  const figure = choice("chart-figure", charts.map((chart, i) => [i, chart.figure])), plot = h("div", {});
  const paint = () => plot.replaceChildren(chartOf(charts[Number(figure.value)]));
  figure.addEventListener("input", paint);
  paint();
  return section("charts", `Figures by ${charts[0].axis}`, about,
    h("div", { class: "row controls" }, h("label", {}, "Figure ", figure)), plot, key(charts[0]));
}
