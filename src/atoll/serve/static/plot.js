// A frame with axes on a canvas, in CSS pixels, in the colours of the theme.

import { ink } from "./dom.js";
import { tickText, ticks } from "./units.js";

const FONT = "12px system-ui, sans-serif";

/** Prepares a canvas; `draw(frame)` is called now, on every resize and when the theme changes. */
export class Plot {
  constructor(canvas, height, draw) {
    this.canvas = canvas;
    this.height = height;
    this.draw = draw;
    this.context = canvas.getContext("2d");
    this.margin = { left: 62, right: 14, top: 10, bottom: 40 };
    new ResizeObserver(() => this.redraw()).observe(canvas);
    addEventListener("theme", () => this.redraw());
  }

  redraw() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.width = width;
    const { left, right, top, bottom } = this.margin;
    this.area = { x: left, y: top, w: width - left - right, h: this.height - top - bottom };
    this.context.fillStyle = ink("card");
    this.context.fillRect(0, 0, width, this.height);
    this.context.font = FONT;
    this.draw(this);
  }

  /** Sets the domains, and draws grid, ticks and titles. */
  axes([x0, x1], [y0, y1], xTitle, yTitle) {
    const { context: c } = this;
    // As much room on the left as the widest label takes.
    const rough = ticks(y0, y1, Math.max(2, this.area.h / 50));
    const widest = Math.max(...rough.map((v) => c.measureText(tickText(v, rough[1] - rough[0])).width));
    const left = Math.ceil(widest) + 32;
    this.area = { ...this.area, x: left, w: this.width - left - this.margin.right };
    const { area } = this;
    this.x = scale(x0, x1, area.x, area.x + area.w);
    this.y = scale(y0, y1, area.y + area.h, area.y);
    c.lineWidth = 1;
    c.fillStyle = ink("muted");
    c.strokeStyle = ink("grid");
    const xs = ticks(x0, x1, Math.max(4, area.w / 90)), ys = ticks(y0, y1, Math.max(2, area.h / 50));
    c.textAlign = "center";
    c.textBaseline = "top";
    for (const value of xs) {
      const at = Math.round(this.x(value)) + 0.5;
      line(c, at, area.y, at, area.y + area.h);
      c.fillText(tickText(value, xs[1] - xs[0]), at, area.y + area.h + 5);
    }
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const value of ys) {
      const at = Math.round(this.y(value)) + 0.5;
      line(c, area.x, at, area.x + area.w, at);
      c.fillText(tickText(value, ys[1] - ys[0]), area.x - 6, at);
    }
    c.fillStyle = ink("text");
    c.textAlign = "center";
    c.textBaseline = "alphabetic";
    c.fillText(xTitle, area.x + area.w / 2, this.height - 6);
    c.save();
    c.translate(13, area.y + area.h / 2);
    c.rotate(-Math.PI / 2);
    c.fillText(yTitle, 0, 0);
    c.restore();
  }

  path(points, colour, { width = 2, dash = [], stairs = false } = {}) {
    const { context: c } = this;
    c.strokeStyle = ink(colour);
    c.lineWidth = width;
    c.setLineDash(dash);
    c.beginPath();
    points.forEach(([x, y], i) => {
      if (i && stairs) c.lineTo(this.x(x), this.y(points[i - 1][1]));
      c[i ? "lineTo" : "moveTo"](this.x(x), this.y(y));
    });
    c.stroke();
    c.setLineDash([]);
  }

  dot(x, y, radius, fill, edge) {
    const { context: c } = this;
    c.beginPath();
    c.arc(this.x(x), this.y(y), radius, 0, 2 * Math.PI);
    if (fill) { c.fillStyle = fill; c.fill(); }
    if (edge) { c.strokeStyle = edge; c.lineWidth = 2; c.stroke(); }
  }

  label(text, x, y, colour) {
    const { context: c } = this;
    c.font = `700 ${FONT}`;
    c.fillStyle = colour;
    c.textAlign = "center";
    c.textBaseline = "bottom";
    const above = this.y(y) - 10;
    c.fillText(text, this.x(x), above > 14 ? above : this.y(y) + 24);
    c.font = FONT;
  }
}

export function scale(from, to, first, last) {
  const size = to - from || 1;
  const map = (value) => first + ((value - from) / size) * (last - first);
  map.back = (at) => from + ((at - first) / (last - first)) * size;
  return map;
}

/** A domain with a little air on both sides. */
export function padded([low, high], share = 0.04) {
  const air = (high - low) * share || Math.abs(high) * 0.05 || 1;
  return [low - air, high + air];
}

function line(c, x0, y0, x1, y1) {
  c.beginPath();
  c.moveTo(x0, y0);
  c.lineTo(x1, y1);
  c.stroke();
}
