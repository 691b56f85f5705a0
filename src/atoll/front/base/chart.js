// A figure of several answers as SVG: lines against numbers, or bars by name, with their intervals.

import { nth, tone } from "./colours.js";
import { h, redrawn, s } from "./dom.js";
import { number, tickText, ticks } from "./units.js";

const HEIGHT = 320, LEFT = 64, RIGHT = 18, TOP = 12, BOTTOM = 44;
const MOST_MARKS = 8; // of the axis at swept values; with more of them at round numbers
const BAR = 18, NAME = 18, VALUE = 96; // heights of a bar and its name, width of the value behind it

const interval = (point) => (point.low === undefined || point.low === null ? "" : ` (${number(point.low)} to ${number(point.high)})`);
const about = (chart, name, point, x) => `${[x, name].filter(Boolean).join(", ")}\n${chart.figure} ${number(point.y)}${interval(point)}`;
const most = (points) => Math.max(...points.map((point) => point.high ?? point.y), 1e-300);

/** `chart`: {figure, axis, categories, lines: {name: [{x, y, low, high}]}}. */
export function chartOf(chart) {
  const box = h("div", {});
  redrawn(box, () => box.replaceChildren(chart.categories.length ? barShapes(chart, box.clientWidth) : lineShapes(chart, box.clientWidth)));
  return box;
}

const picture = (chart, width, height, shapes) => s("svg", { class: "chart", width, height, role: "img",
  "aria-label": `${chart.figure} by ${chart.axis}; the table below has the values` }, shapes);

function lineShapes(chart, width) {
  const names = Object.keys(chart.lines), points = names.flatMap((name) => chart.lines[name]);
  const swept = [...new Set(points.map((point) => point.x))].sort((a, b) => a - b);
  const [first, last] = [swept[0], swept.at(-1)], log = first > 0 && last / first >= 8;
  const at = log ? Math.log : (v) => v, span = at(last) - at(first) || 1;
  const x = (v) => LEFT + 16 + ((at(v) - at(first)) / span) * (width - LEFT - RIGHT - 32);
  const top = most(points) * 1.04, bottom = HEIGHT - BOTTOM;
  const y = (v) => bottom - (v / top) * (bottom - TOP);
  const marks = swept.length <= MOST_MARKS ? swept : ticks(first, last, width / 90);
  const levels = ticks(0, top, 5), step = levels[1] - levels[0];
  return picture(chart, width, HEIGHT, [
    levels.map((v) => [
      s("path", { d: `M${LEFT} ${y(v)}H${width - RIGHT}`, stroke: tone("grid") }),
      s("text", { class: "muted", x: LEFT - 8, y: y(v) + 4, "text-anchor": "end" }, tickText(v, step)),
    ]),
    marks.map((v) => s("text", { class: "muted", x: x(v), y: bottom + 18, "text-anchor": "middle" }, number(v))),
    s("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, log ? `${chart.axis}, logarithmic` : chart.axis),
    s("text", { x: -(TOP + bottom) / 2, y: 14, "text-anchor": "middle", transform: "rotate(-90)" }, chart.figure),
    names.map((name, i) => [
      s("polyline", { points: chart.lines[name].map((point) => `${x(point.x)},${y(point.y)}`).join(" "), fill: "none", stroke: nth(i), "stroke-width": 2 }),
      chart.lines[name].map((point) => [
        interval(point) && s("path", { d: `M${x(point.x)} ${y(point.low)}V${y(point.high)}`, stroke: nth(i), "stroke-width": 5, opacity: 0.3 }),
        s("circle", { cx: x(point.x), cy: y(point.y), r: 4.5, fill: nth(i), tip: about(chart, name, point, `${chart.axis} ${number(point.x)}`) }),
      ]),
    ]),
  ]);
}

function barShapes(chart, width) {
  const names = Object.keys(chart.lines), top = most(names.flatMap((name) => chart.lines[name]));
  const scale = Math.max(40, width - VALUE) / top, shapes = [];
  let y = 0;
  chart.categories.forEach((category, k) => {
    const bars = names.flatMap((name, i) => chart.lines[name].filter((point) => point.x === k).map((point) => [name, i, point]));
    if (!bars.length) return;
    shapes.push(s("text", { x: 0, y: y + 13 }, category));
    y += NAME;
    for (const [name, i, point] of bars) {
      const middle = y + BAR / 2 - 1, end = scale * (point.high ?? point.y);
      shapes.push(
        s("rect", { x: 0, y, width: scale * point.y, height: BAR - 3, rx: 2, fill: nth(i), tip: about(chart, name, point, category) }),
        interval(point) && s("path", { d: `M${scale * point.low} ${middle}H${end}M${scale * point.low} ${middle - 4}v8M${end} ${middle - 4}v8`, stroke: tone("text"), fill: "none" }),
        s("text", { class: "strong", x: end + 6, y: middle + 4 }, number(point.y)));
      y += BAR;
    }
    y += 6;
  });
  return picture(chart, width, y, shapes.filter(Boolean));
}
