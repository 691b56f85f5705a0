// Designs as points, or as cells with counts where they are many.

import { title, withUnit } from "../base/columns.js";
import { ink, say } from "../base/dom.js";
import { padded } from "../base/plot.js";
import { Scatter } from "../base/scatter.js";
import { counted } from "../base/units.js";

const MANY = 300;

export class DesignScatter extends Scatter {
  /** `onPick(chip)` for a design, `onBrush(x range, y range)` for a rectangle. */
  constructor(onPick, onBrush) {
    super({
      id: "scatter", label: "Scatter of designs. Left and right arrow move between marks, Enter opens one.", height: innerWidth < 600 ? 300 : 380,
      draw: (plot) => this.designs(plot), stops: (marks) => marks, words: (mark) => this.told(mark),
      pick: (mark) => onPick(mark.chip), walk: (mark) => say(this.told(mark).join(", ")), brush: onBrush,
    });
    this.data = null;
  }

  show(data, picked) {
    if (data !== this.data) this.at = -1;
    this.data = data;
    this.picked = picked; // {letter: row}
    this.canvas.dataset.mode = data.mode;
    this.canvas.dataset.shown = data.shown;
    this.redraw();
  }

  designs(plot) {
    const { data } = this;
    if (!data?.shown) {
      plot.say(data ? "No design passes the filters." : "Reading designs.");
      return [];
    }
    const cells = data.mode === "cells", [dx, dy] = data.domain;
    plot.axes(cells ? widened(dx) : padded(dx), cells ? widened(dy) : padded(dy), title(data.x), title(data.y));
    const marks = cells ? this.cells(plot) : this.points(plot);
    const { front, best } = data;
    if (front.length > 1) plot.path(front.map(([, x, y]) => [x, y]), "front", { dash: [5, 3], stairs: true });
    for (const [, x, y] of front) plot.dot(x, y, cells ? 3 : 5, ink("front"), ink("card"));
    if (cells) for (const [chip, x, y] of front) marks.push({ chip, x, y, px: plot.x(x), py: plot.y(y) });
    plot.dot(best[1], best[2], 9, null, ink("front"));
    plot.label("best", best[1], best[2], ink("front"));
    this.canvas.dataset.best = best[0];
    for (const [letter, row] of Object.entries(this.picked ?? {})) {
      if (row[data.x] === undefined || row[data.x] === null) continue;
      const tone = ink(letter === "A" ? "a" : letter === "B" ? "b" : "text");
      plot.dot(row[data.x], row[data.y], 8, null, tone);
      if (letter.length === 1) plot.label(letter, row[data.x], row[data.y], tone);
    }
    return marks;
  }

  points(plot) {
    const { points } = this.data, c = plot.context, fill = ink("blue"), many = points.length > MANY;
    c.globalAlpha = many ? 0.65 : 0.9;
    for (const [, x, y] of points) plot.dot(x, y, many ? 3.5 : 5, fill);
    c.globalAlpha = 1;
    return points.map(([chip, x, y]) => ({ chip, x, y, px: plot.x(x), py: plot.y(y) }));
  }

  cells(plot) {
    const { cells, grid: [nx, ny] } = this.data, { area, context: c } = plot;
    const most = cells.reduce((m, cell) => Math.max(m, cell[2]), 1), w = area.w / nx, h = area.h / ny;
    c.fillStyle = ink("blue");
    const marks = cells.map(([ix, iy, count, chip]) => {
      const left = area.x + ix * w, top = area.y + area.h - (iy + 1) * h;
      c.globalAlpha = 0.22 + 0.78 * (Math.log1p(count) / Math.log1p(most));
      c.fillRect(left, top, Math.max(1, w - 0.5), Math.max(1, h - 0.5));
      const px = left + w / 2, py = top + h / 2;
      return { chip, count, px, py, x: plot.x.back(px), y: plot.y.back(py) };
    });
    c.globalAlpha = 1;
    return marks;
  }

  told(mark) {
    const { x, y } = this.data;
    return mark.count
      ? [`${counted(mark.count, "design")} about here`, `${withUnit(x, mark.x)}, ${withUnit(y, mark.y)}`, `click: the fastest, design ${mark.chip}`]
      : [`design ${mark.chip}`, withUnit(x, mark.x), withUnit(y, mark.y)];
  }
}

const widened = ([low, high]) => (high > low ? [low, high] : [low - 0.5, high + 0.5]);
