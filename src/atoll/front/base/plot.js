// A frame with axes on a canvas, in CSS pixels, in the colours of the theme.

import { ink, redrawn } from "./dom.js";
import { logTicks, number, tickText, ticks } from "./units.js";

const FONT = "12px system-ui, sans-serif";

/** A canvas of this size on any screen, in the colours of the page. */
export function sharp(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = ink("card");
  context.fillRect(0, 0, width, height);
  context.font = FONT;
  return context;
}

/** Prepares a canvas; `draw(frame)` is called now, on every resize and when the theme changes. */
export class Plot {
  constructor(canvas, height, draw) {
    this.canvas = canvas;
    this.height = height;
    this.draw = draw;
    this.margin = { right: 14, top: 10, bottom: 40 };
    redrawn(canvas, () => this.redraw());
  }

  redraw() {
    this.width = this.canvas.clientWidth;
    if (!this.width) return;
    this.context = sharp(this.canvas, this.width, this.height);
    this.draw(this);
  }

  /** Sets the domains, and draws grid, ticks and titles. */
  axes([x0, x1], [y0, y1], xTitle, yTitle, log = false) {
    const { context: c, margin } = this;
    const find = log ? logTicks : ticks;
    const words = (found) => found.map((v) => (log ? number(v, 3) : tickText(v, found[1] - found[0])));
    const tall = this.height - margin.top - margin.bottom;
    const ys = find(y0, y1, Math.max(2, tall / 50)), yWords = words(ys);
    // As much room on the left as the widest label takes.
    const left = Math.ceil(Math.max(0, ...yWords.map((text) => c.measureText(text).width))) + 32;
    const area = { x: left, y: margin.top, w: this.width - left - margin.right, h: tall };
    this.area = area;
    this.x = scale(x0, x1, area.x, area.x + area.w, log);
    this.y = scale(y0, y1, area.y + area.h, area.y, log);
    const xs = find(x0, x1, Math.max(4, area.w / 90)), xWords = words(xs);
    c.lineWidth = 1;
    c.fillStyle = ink("muted");
    c.strokeStyle = ink("grid");
    c.textAlign = "center";
    c.textBaseline = "top";
    xs.forEach((value, i) => {
      const at = Math.round(this.x(value)) + 0.5;
      line(c, at, area.y, at, area.y + area.h);
      c.fillText(xWords[i], at, area.y + area.h + 5);
    });
    c.textAlign = "right";
    c.textBaseline = "middle";
    ys.forEach((value, i) => {
      const at = Math.round(this.y(value)) + 0.5;
      line(c, area.x, at, area.x + area.w, at);
      c.fillText(yWords[i], area.x - 6, at);
    });
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
    const px = this.x(x), py = this.y(y), above = py > 24, left = !above && px > 80;
    c.textAlign = above ? "center" : left ? "right" : "left";
    c.textBaseline = above ? "bottom" : "middle";
    c.fillText(text, above ? px : px + (left ? -14 : 14), above ? py - 10 : py);
    c.font = FONT;
  }

  /** Words in the middle of an empty frame. */
  say(text) {
    this.context.fillStyle = ink("muted");
    this.context.textAlign = "center";
    this.context.fillText(text, this.width / 2, this.height / 2);
  }
}

function scale(from, to, first, last, log) {
  const [on, off] = log ? [Math.log, Math.exp] : [(v) => v, (v) => v];
  const start = on(from), size = on(to) - start || 1;
  const map = (value) => first + ((on(value) - start) / size) * (last - first);
  map.back = (at) => off(start + ((at - first) / (last - first)) * size);
  return map;
}

/** A domain with a little air on both sides. */
export function padded([low, high], share = 0.04, log = false) {
  if (log) {
    const air = Math.max(1.02, (high / low) ** share);
    return [low / air, high * air];
  }
  const air = (high - low) * share || Math.abs(high) * 0.05 || 1;
  return [low - air, high + air];
}

function line(c, x0, y0, x1, y1) {
  c.beginPath();
  c.moveTo(x0, y0);
  c.lineTo(x1, y1);
  c.stroke();
}
