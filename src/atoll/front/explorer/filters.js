// A distribution for each column: drag over bars, or type the ends.

import { COLUMNS, precise, title } from "../base/columns.js";
import { h } from "../base/dom.js";
import { counted } from "../base/units.js";
import * as state from "./state.js";

/** One column's box; `change(range text or null)` when the user has moved it. */
export function filterBox({ column, values, exact, logarithmic, counts }, change) {
  const bars = counts.length;
  const range = state.range(column);
  const inside = (i) => {
    if (!range) return true;
    return exact ? values[i] >= range[0] && values[i] <= range[1] : values[i + 1] > range[0] && values[i] < range[1];
  };
  const most = Math.max(...counts, 1);
  const svg = h("svg:svg", { viewBox: `0 0 ${bars} 44`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${title(column)}: ${bars} bars, the largest holds ${counted(most, "design")}` });
  counts.forEach((count, i) => {
    const height = count ? Math.max(1.5, 42 * (count / most)) : 0;
    svg.append(h("svg:rect", { class: inside(i) ? "bar in" : "bar", x: i + 0.06, width: 0.88, y: 44 - height, height },
      h("svg:title", {}, `${exact ? precise(column, values[i]) : `${precise(column, values[i])} to ${precise(column, values[i + 1])}`} ${COLUMNS[column].unit}: ${counted(count, "design")}`)));
  });
  const span = (i, j) => {
    const [a, b] = [Math.min(i, j), Math.max(i, j)];
    return exact ? state.rangeText(values[a], values[b]) : state.rangeText(values[a], values[b + 1]);
  };
  let from = null;
  const bar = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.max(0, Math.min(bars - 1, Math.floor(((event.clientX - box.left) / box.width) * bars)));
  };
  const paint = (i, j) => [...svg.children].forEach((rect, k) =>
    rect.setAttribute("class", k >= Math.min(i, j) && k <= Math.max(i, j) ? "bar in" : "bar"));
  svg.addEventListener("pointerdown", (event) => { from = bar(event); svg.setPointerCapture(event.pointerId); paint(from, from); });
  svg.addEventListener("pointermove", (event) => { if (from !== null) paint(from, bar(event)); });
  svg.addEventListener("pointercancel", () => { from = null; });
  svg.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const wanted = span(from, bar(event));
    from = null;
    change(wanted === state.get(column, null) ? null : wanted); // the same again takes it away
  });

  const end = (side) => {
    const shown = range && Number.isFinite(range[side]) ? precise(column, range[side]) : "";
    const field = h("input", { type: "text", inputmode: "decimal", value: shown, placeholder: precise(column, values.at(side ? -1 : 0)),
      "aria-label": `${title(column)}, ${side ? "at most" : "at least"}` });
    field.addEventListener("change", () => {
      const ends = [...(state.range(column) ?? [-Infinity, Infinity])];
      const text = field.value.trim().replace(",", ".");
      const value = text === "" ? (side ? Infinity : -Infinity) : Number(text) * COLUMNS[column].per;
      if (Number.isNaN(value)) { field.value = shown; return; }
      ends[side] = value;
      change(state.rangeText(...ends));
    });
    return field;
  };
  return h("div", { class: "filter", "data-column": column },
    h("div", { class: "head" }, h("span", {}, title(column), logarithmic ? h("small", { class: "muted" }, " log scale") : null),
      range ? h("button", { type: "button", "aria-label": `Clear the filter on ${COLUMNS[column].label}`, onclick: () => change(null) }, "clear") : null),
    svg,
    h("div", { class: "ends" }, end(0), "to", end(1)));
}
