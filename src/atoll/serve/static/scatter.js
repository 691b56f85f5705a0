// Designs as points, or as cells with counts where they are many; click, drag, arrow keys.

import { h, hint, ink, say } from "./dom.js";
import { Plot, padded } from "./plot.js";
import { number, title, withUnit } from "./units.js";

export class Scatter {
  /** `onPick(chip)` for a design, `onBrush(x range, y range)` for a rectangle. */
  constructor(onPick, onBrush) {
    this.canvas = h("canvas", {
      class: "plot", tabindex: "0", role: "application", id: "scatter",
      "aria-label": "Scatter of designs. Left and right arrow move between marks, Enter opens one.",
    });
    this.data = null;
    this.marks = [];
    this.at = -1;
    this.onPick = onPick;
    this.onBrush = onBrush;
    this.drag = null;
    this.plot = new Plot(this.canvas, innerWidth < 600 ? 300 : 380, () => this.draw());
    this.listen();
  }

  show(data, picked) {
    this.data = data;
    this.picked = picked; // {chip: letter}
    this.at = -1;
    this.canvas.dataset.mode = data.mode;
    this.canvas.dataset.shown = data.shown;
    this.plot.redraw();
  }

  draw() {
    const { data, plot } = this;
    const c = plot.context;
    if (!data || !data.shown) {
      c.fillStyle = ink("muted");
      c.textAlign = "center";
      c.fillText(data ? "No design passes the filters." : "Reading designs.", plot.width / 2, plot.height / 2);
      this.marks = [];
      return;
    }
    const cells = data.mode === "cells";
    const [dx, dy] = data.domain;
    plot.axes(cells ? widened(dx) : padded(dx), cells ? widened(dy) : padded(dy), title(data.x), title(data.y));
    const edge = ink("card"), fill = ink("data");
    this.marks = [];
    if (cells) {
      const [nx, ny] = data.grid, [x0, x1] = widened(dx), [y0, y1] = widened(dy);
      const most = data.cells.reduce((m, cell) => Math.max(m, cell[2]), 1);
      const w = plot.area.w / nx, hh = plot.area.h / ny;
      for (const [ix, iy, count, chip] of data.cells) {
        const left = plot.area.x + ix * w, top = plot.area.y + plot.area.h - (iy + 1) * hh;
        c.globalAlpha = 0.22 + 0.78 * (Math.log1p(count) / Math.log1p(most));
        c.fillStyle = fill;
        c.fillRect(left, top, Math.max(1, w - 0.5), Math.max(1, hh - 0.5));
        this.marks.push({ chip, count, px: left + w / 2, py: top + hh / 2,
          x: x0 + ((ix + 0.5) / nx) * (x1 - x0), y: y0 + ((iy + 0.5) / ny) * (y1 - y0) });
      }
      c.globalAlpha = 1;
    } else {
      c.globalAlpha = data.points.length > 300 ? 0.65 : 0.9;
      for (const [chip, x, y] of data.points) {
        plot.dot(x, y, data.points.length > 300 ? 3.5 : 5, fill);
        this.marks.push({ chip, x, y, px: plot.x(x), py: plot.y(y) });
      }
      c.globalAlpha = 1;
    }
    const front = [...data.front].sort((p, q) => p[1] - q[1]);
    if (front.length > 1) plot.path(front.map(([, x, y]) => [x, y]), "front", { dash: [5, 3] });
    for (const [, x, y] of front) plot.dot(x, y, cells ? 3 : 5, ink("front"), edge);
    if (cells) for (const [chip, x, y] of front) this.marks.push({ chip, x, y, px: plot.x(x), py: plot.y(y) });
    for (const [letter, row] of Object.entries(this.picked ?? {})) {
      if (row[data.x] === undefined || row[data.x] === null) continue;
      const tone = ink(letter === "A" ? "a" : letter === "B" ? "b" : "text");
      plot.dot(row[data.x], row[data.y], 8, null, tone);
      if (letter.length === 1) plot.label(letter, row[data.x], row[data.y], tone);
    }
    this.marks.sort((p, q) => p.px - q.px || p.py - q.py);
    const mark = this.marks[this.at];
    if (mark) { c.strokeStyle = ink("text"); c.lineWidth = 2; c.strokeRect(mark.px - 7, mark.py - 7, 14, 14); }
    if (this.drag?.moved) {
      const { x0, y0, x1, y1 } = this.drag;
      c.strokeStyle = ink("accent");
      c.setLineDash([4, 3]);
      c.strokeRect(Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0));
      c.setLineDash([]);
    }
  }

  nearest(x, y, within = 14) {
    let best = null, distance = within * within;
    for (const mark of this.marks) {
      const d = (mark.px - x) ** 2 + (mark.py - y) ** 2;
      if (d < distance) { best = mark; distance = d; }
    }
    return best;
  }

  words(mark) {
    const { x, y } = this.data;
    return mark.count
      ? [`${number(mark.count)} design${mark.count > 1 ? "s" : ""} about here`, `${withUnit(x, mark.x)}, ${withUnit(y, mark.y)}`, `click: the fastest, design ${mark.chip}`]
      : [`design ${mark.chip}`, withUnit(x, mark.x), withUnit(y, mark.y)];
  }

  listen() {
    const { canvas } = this;
    const spot = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      const [x, y] = spot(event);
      this.drag = { x0: x, y0: y, x1: x, y1: y, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = spot(event);
      if (this.drag) {
        Object.assign(this.drag, { x1: x, y1: y, moved: this.drag.moved || Math.hypot(x - this.drag.x0, y - this.drag.y0) > 6 });
        if (this.drag.moved) { hint(null); this.plot.redraw(); }
        return;
      }
      const mark = this.nearest(x, y);
      hint(mark && this.words(mark), event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", () => hint(null));
    canvas.addEventListener("pointercancel", () => { this.drag = null; });
    canvas.addEventListener("pointerup", () => {
      const drag = this.drag;
      this.drag = null;
      if (!drag?.moved || !this.data?.shown) return;
      this.brushed = true; // the click that follows is the end of the drag
      const { plot } = this;
      const ends = (a, b, map) => [map.back(a), map.back(b)].sort((p, q) => p - q);
      this.onBrush(ends(drag.x0, drag.x1, plot.x), ends(drag.y0, drag.y1, plot.y));
    });
    canvas.addEventListener("click", (event) => {
      if (this.brushed) { this.brushed = false; return; }
      const mark = this.nearest(...spot(event), 20);
      if (mark) this.onPick(mark.chip);
    });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step && this.marks.length) {
        this.at = (this.at + step + this.marks.length + (this.at < 0 && step < 0 ? 1 : 0)) % this.marks.length;
        this.plot.redraw();
        say(this.words(this.marks[this.at]).join(", "));
      } else if (event.key === "Enter" && this.marks[this.at]) this.onPick(this.marks[this.at].chip);
      else if (event.key === "Escape") { this.at = -1; this.plot.redraw(); }
      else return;
      event.preventDefault();
    });
  }
}

const widened = ([low, high]) => (high > low ? [low, high] : [low - 0.5, high + 0.5]);
