// Several answers: a figure drawn against what was swept, and tables of runs side by side.

import { PALETTE, tone } from "../base/colours.js";
import { h, ink, legend, section, table } from "../base/dom.js";
import { Plot, padded } from "../base/plot.js";

const reach = (values) => [Math.min(...values), Math.max(...values)];

export const tableView = ({ title, heads, rows }, number) =>
  section(`table-${number}`, title, "", table(heads, rows, { class: "wrap" }));

export function plotView({ plot }) {
  const names = Object.keys(plot.lines);
  const colour = (i) => PALETTE[i % PALETTE.length];
  const canvas = h("canvas", { id: "sweep-plot", style: { width: "100%" }, role: "img", "aria-label": `${plot.y} against ${plot.x}` });
  const points = Object.values(plot.lines).flat();
  new Plot(canvas, 320, (frame) => {
    frame.axes(padded(reach(points.map(([x]) => x))), padded(reach([0, ...points.map(([, y]) => y)])), plot.x, plot.y);
    names.forEach((name, i) => {
      frame.path(plot.lines[name], colour(i));
      plot.lines[name].forEach(([x, y]) => frame.dot(x, y, 4, ink(colour(i))));
    });
  });
  return section("sweep", `${plot.y} against ${plot.x}`, "", canvas,
    names.length > 1 ? legend(names.map((name, i) => [tone(colour(i)), name])) : null);
}
