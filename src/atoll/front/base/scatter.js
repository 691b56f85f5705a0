// A plot of marks: hover, click, drag a rectangle, walk with the arrow keys.

import { h, ink, tip } from "./dom.js";
import { Plot } from "./plot.js";

export class Scatter {
  /**
   * `draw(plot)` returns the marks, each {px, py, over, picked}: pixels, whether it lies on top, and whether the
   * arrow keys begin there; `stops(marks)` are those that they walk through. `words(mark)` tells of one. A click is `pick(mark)`, an arrow key
   * `walk(mark)`, a rectangle `brush(x range, y range)`.
   */
  constructor({ id, label, height, draw, stops, words, pick, walk, brush }) {
    this.canvas = h("canvas", { class: brush ? "plot brushed" : "plot", tabindex: "0", role: "application", id, "aria-label": label });
    Object.assign(this, { paint: draw, stops, words, pick, walk, brush, marks: [], walked: [], at: -1, drag: null });
    this.plot = new Plot(this.canvas, height, () => this.draw());
    this.listen();
  }

  redraw() { this.plot.redraw(); }

  draw() {
    this.marks = this.paint(this.plot);
    this.walked = this.stops(this.marks).sort((p, q) => p.px - q.px || p.py - q.py);
    if (this.at < 0) this.at = this.walked.findIndex((mark) => mark.picked);
    const c = this.plot.context, mark = this.walked[this.at];
    if (mark && document.activeElement === this.canvas) { c.strokeStyle = ink("text"); c.lineWidth = 2; c.strokeRect(mark.px - 7, mark.py - 7, 14, 14); }
    if (this.drag?.moved) {
      const { x0, y0, x1, y1 } = this.drag;
      c.strokeStyle = ink("accent");
      c.setLineDash([4, 3]);
      c.strokeRect(Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0));
      c.setLineDash([]);
    }
  }

  nearest([x, y], within) {
    let best = null, distance = within * within;
    for (const mark of this.marks) {
      const d = ((mark.px - x) ** 2 + (mark.py - y) ** 2) * (mark.over ? 0.5 : 1);
      if (d < distance) { best = mark; distance = d; }
    }
    return best;
  }

  listen() {
    const { canvas } = this;
    const spot = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    if (this.brush) canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return; // a finger scrolls the page
      const [x, y] = spot(event);
      this.drag = { x0: x, y0: y, x1: x, y1: y, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = spot(event);
      if (this.drag) {
        Object.assign(this.drag, { x1: x, y1: y, moved: this.drag.moved || Math.hypot(x - this.drag.x0, y - this.drag.y0) > 6 });
        if (this.drag.moved) { tip(); this.redraw(); }
        return;
      }
      const mark = this.nearest([x, y], 14);
      tip(mark ? this.words(mark).join("\n") : "", event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", () => tip());
    canvas.addEventListener("pointercancel", () => { this.drag = null; });
    canvas.addEventListener("pointerup", () => {
      const drag = this.drag;
      this.drag = null;
      if (!drag?.moved || !this.marks.length) return;
      this.brushed = true; // the click that follows is the end of the drag
      const ends = (a, b, map) => [map.back(a), map.back(b)].sort((p, q) => p - q);
      this.brush(ends(drag.x0, drag.x1, this.plot.x), ends(drag.y0, drag.y1, this.plot.y));
    });
    canvas.addEventListener("click", (event) => {
      if (this.brushed) { this.brushed = false; return; }
      const mark = this.nearest(spot(event), 22);
      if (!mark) return;
      this.at = this.walked.indexOf(mark);
      this.pick(mark);
    });
    canvas.addEventListener("keydown", (event) => {
      const last = this.walked.length - 1;
      const to = { ArrowRight: Math.min(last, this.at + 1), ArrowLeft: this.at < 0 ? last : Math.max(0, this.at - 1), Home: 0, End: last }[event.key];
      if (to !== undefined && last >= 0) {
        this.at = to;
        this.redraw();
        this.walk(this.walked[to]);
      } else if (event.key === "Enter" && this.walked[this.at]) this.pick(this.walked[this.at]);
      else if (event.key === "Escape") { this.at = -1; this.redraw(); }
      else return;
      event.preventDefault();
    });
  }
}
