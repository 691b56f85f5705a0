// Every chip of the space: throughput against area, power or energy; filters, front, one in detail.

import { tone } from "../base/colours.js";
import { COLUMNS, shown, title, withUnit } from "../base/columns.js";
import { choice, h, ink, legend, section, table } from "../base/dom.js";
import { padded } from "../base/plot.js";
import { Scatter } from "../base/scatter.js";
import { bytes, number, percent } from "../base/units.js";

const STATES = ["ruled out by roofline", "ruled out by schedule", "evaluated, cannot beat the best", "evaluated, with its plan"];
const COLOURS = ["faint", "mid", "pink", "blue"];
const PLACED = 2, EVALUATED = 3;

function unpacked(text, kind) {
  const raw = atob(text);
  return new kind(Uint8Array.from(raw, (letter) => letter.charCodeAt(0)).buffer);
}

/** The columns of a space as arrays, and `value(name, i)` of a parameter, null where it has none. */
function unpackSpace(packed) {
  const columns = Object.fromEntries(Object.entries(packed.parameters).map(([name, { values, wide, places }]) =>
    [name, { values, places: unpacked(places, wide ? Uint16Array : Uint8Array), none: wide ? 65535 : 255 }]));
  const figures = Object.fromEntries(Object.entries(packed.figures).map(([name, text]) => [name, unpacked(text, Float32Array)]));
  const value = (name, i) => {
    const { values, places, none } = columns[name];
    return places[i] === none ? null : values[places[i]];
  };
  return { ...packed, columns, figures, value, score: unpacked(packed.score, Float32Array), state: unpacked(packed.state, Uint8Array) };
}

/** Of evaluated points, those that no other beats in both score and cost; the fastest first. */
function frontOf(space, cost, chosen) {
  const order = chosen.filter((i) => space.state[i] === EVALUATED).sort((a, b) => space.score[b] - space.score[a] || cost[a] - cost[b]);
  let least = Infinity;
  return order.filter((i) => {
    const better = cost[i] < least;
    if (better) least = cost[i];
    return better;
  });
}

/** What narrows a space: inputs, their elements, and which chips pass. */
function filtersOf(space) {
  const held = new Set(space.state);
  const ticked = (id, words, checked) => {
    const input = h("input", { type: "checkbox", id, checked });
    return [input, h("label", {}, input, words)];
  };
  const axis = choice("space-axis", Object.keys(space.figures).map((name) => [name, COLUMNS[name].label.toLowerCase()]));
  const [log, logLabel] = ticked("space-log", "logarithmic", false);
  const states = STATES.map((words, k) => (held.has(k) ? ticked(`space-state-${k}`, words, true) : null));
  const parameters = space.shown.map(({ name }) => [name, choice(`space-${name}`, [["", "any"], ...space.columns[name].values.map((v) => [v, withUnit(name, v)])])]);
  const limit = h("input", { type: "number", id: "space-area", min: 0, step: 10, placeholder: "mm²" });
  function passing() {
    const most = limit.value === "" ? Infinity : Number(limit.value);
    const wanted = parameters.filter(([, input]) => input.value !== "").map(([name, input]) => [name, Number(input.value)]);
    const found = [];
    for (let i = 0; i < space.count; i++) {
      if (!states[space.state[i]][0].checked || space.figures.area_mm2[i] > most) continue;
      if (wanted.every(([name, value]) => space.value(name, i) === value)) found.push(i);
    }
    return found;
  }
  const element = h("div", { class: "row controls" }, h("label", {}, "Horizontal axis ", axis), logLabel,
    states.map((state) => state?.[1]), parameters.map(([name, input]) => h("label", {}, COLUMNS[name].label.toLowerCase(), " ", input)),
    h("label", {}, "area at most ", limit));
  return { axis, log, held, passing, element };
}

/** Baselines as dashed lines with their names, and as triangles where the chip is known. */
function drawBaselines(plot, baselines, axis) {
  const { context: c, area } = plot;
  const colour = ink("vermilion"), card = ink("card"), text = ink("text");
  // Fast chips use little energy per token: the free corner is on the other side there.
  const right = axis === "energy_per_token_J", edge = right ? area.x + area.w - 6 : area.x + 6;
  let last = -99;
  c.textBaseline = "bottom";
  c.textAlign = right ? "right" : "left";
  for (const b of baselines.filter((row) => row.score).sort((p, q) => q.score - p.score)) {
    const y = Math.min(area.y + area.h, plot.y(b.score));
    c.strokeStyle = colour;
    c.fillStyle = colour;
    c.lineWidth = 1;
    c.setLineDash([5, 4]);
    c.beginPath();
    c.moveTo(area.x, y);
    c.lineTo(area.x + area.w, y);
    c.stroke();
    c.setLineDash([]);
    if (b.area_mm2 && axis === "area_mm2") {
      const x = plot.x(b.area_mm2);
      c.beginPath();
      c.moveTo(x, y - 6);
      c.lineTo(x + 6, y + 5);
      c.lineTo(x - 6, y + 5);
      c.fill();
    }
    const at = y - last > 13 ? y - 2 : y + 15;
    last = y - last > 13 ? y : y + 16;
    const size = c.measureText(b.name).width;
    c.globalAlpha = 0.8;
    c.fillStyle = card;
    c.fillRect(right ? edge - size - 2 : edge - 2, at - 13, size + 4, 14);
    c.globalAlpha = 1;
    c.fillStyle = text;
    c.fillText(b.name, edge, at);
  }
}

export function spaceView({ space: packed, baselines, score: best, unit, pareto }) {
  for (const parameter of packed.shown) COLUMNS[parameter.name] = parameter;
  const space = unpackSpace(packed), filters = filtersOf(space), { axis, log, held } = filters;
  const count = h("p", { id: "space-count", class: "muted", "aria-live": "polite" });
  const detail = h("div", { class: "detail", id: "space-detail", "aria-live": "polite" });
  let chosen = [], front = new Set(), picked = -1;
  const describe = (i) => packed.shown.map(({ name, label }) => `${label.toLowerCase()} ${withUnit(name, space.value(name, i))}`).join(", ");

  const scatter = new Scatter({
    id: "space-plot", label: "Throughput of all chips; arrow keys follow the front", height: innerWidth < 600 ? 320 : 440,
    draw, stops: (marks) => marks.filter((mark) => front.has(mark.i)), pick: (mark) => pick(mark.i), walk: (mark) => pick(mark.i),
    words: ({ i }) => [describe(i), `${number(space.score[i], 5)} ${unit}${space.state[i] === EVALUATED ? "" : " at most"}`],
  });

  function draw(plot) {
    if (!chosen.length) { plot.say("No chip passes the filters."); return []; }
    const cost = space.figures[axis.value], c = plot.context;
    let wide = 0, near = Infinity, high = Math.max(0, ...baselines.map((b) => b.score ?? 0)), low = Infinity;
    for (const i of chosen) {
      wide = Math.max(wide, cost[i]);
      high = Math.max(high, space.score[i]);
      if (cost[i] > 0) near = Math.min(near, cost[i]);
      if (space.score[i] > 0) low = Math.min(low, space.score[i]);
    }
    const ends = (from, to) => (log.checked ? padded([from, to], 0.05, true) : [0, 1.04 * to]);
    const [xs, ys] = [ends(near, wide), ends(low, high)];
    plot.axes(xs, ys, title(axis.value), unit, log.checked);
    const grow = chosen.length < 300 ? 2.2 : chosen.length < 3000 ? 1.5 : 1;
    const tints = COLOURS.map(ink);
    const marks = chosen.map((i) => ({ i, px: plot.x(cost[i]), py: plot.y(Math.max(space.score[i], ys[0])), over: space.state[i] === EVALUATED, picked: i === picked }));
    STATES.forEach((_, k) => {
      const size = grow * (k === EVALUATED ? 3.4 : 1.8);
      c.fillStyle = tints[k];
      for (const { i, px, py } of marks) if (space.state[i] === k) c.fillRect(px - size / 2, py - size / 2, size, size);
    });
    plot.path([...front].reverse().map((i) => [cost[i], space.score[i]]), "orange", { stairs: true });
    drawBaselines(plot, baselines, axis.value);
    if (picked >= 0 && cost[picked] === cost[picked]) plot.dot(cost[picked], space.score[picked], 7, null, ink("focus"));
    return marks;
  }

  function refilter() {
    const cost = space.figures[axis.value], passing = filters.passing();
    const counts = STATES.map((_, k) => passing.filter((i) => space.state[i] === k).length);
    chosen = passing.filter((i) => cost[i] === cost[i]);
    front = new Set(frontOf(space, cost, chosen));
    const missing = passing.length - chosen.length;
    count.textContent = `${number(passing.length)} of ${number(space.total)} chips: ${number(counts[PLACED] + counts[EVALUATED])} evaluated (`
      + `${number(counts[EVALUATED])} with a plan on record), ${number(counts[0] + counts[1])} ruled out`
      + `${missing ? `; ${number(missing)} have no figure on this axis` : ""}.`;
    scatter.at = -1;
    scatter.redraw();
  }

  function pick(i) {
    picked = i;
    const found = space.state[i] === EVALUATED, value = (name) => space.value(name, i);
    detail.replaceChildren(...(i < 0 ? [h("p", { class: "muted" }, "No point chosen.")] : [
      h("h3", {}, describe(i)),
      table([], [
        ["state", STATES[space.state[i]]],
        [found ? unit : `${unit}, at most`, number(space.score[i], 6)],
        ["of the best", percent(space.score[i] / best, 2)],
        ...Object.entries(space.figures).filter(([, values]) => values[i] === values[i])
          .map(([name, values]) => [COLUMNS[name].label.toLowerCase(), `${shown(name, values[i])} ${COLUMNS[name].unit}`]),
        ...(found ? [["HBM, at most", bytes(value("hbm_capacity_bytes"))], ["layout", `tp${value("tensor")} pp${value("pipeline")} dp${value("data")} mbs${value("microbatch")}`]] : []),
      ], { class: "wrap told" }),
      ...(front.has(i) ? [h("p", { class: "muted" }, "On the Pareto front: no evaluated chip is faster at a lower value of this axis.")] : []),
    ]));
    scatter.redraw();
  }

  const proven = pareto[axis.value];
  const node = section("space", "All chips",
    "Each point is one chip: its throughput if it was evaluated, otherwise its upper bound. "
    + "Click a point, or follow the front with the arrow keys in the plot.",
    packed.note ? h("p", { class: "muted" }, packed.note) : null,
    filters.element, count, h("div", { class: "pair" }, scatter.canvas, detail),
    legend([...STATES.map((words, k) => [tone(COLOURS[k]), words]).filter((_, k) => held.has(k)),
      [tone("orange"), `front of evaluated designs${proven ? `, proven within ${percent(proven, 1)}` : ""}`, "line"],
      ...(baselines.some((b) => b.score) ? [[tone("vermilion"), "baselines (▲ where the chip is known)", "line"]] : [])]));
  filters.element.addEventListener("input", refilter);
  refilter();
  // The answer at first: of equals within the tolerance it need not be the fastest.
  pick(chosen.find((i) => space.state[i] === EVALUATED && Math.abs(space.score[i] / best - 1) < 1e-6) ?? [...front][0] ?? -1);
  return node;
}
