// The wafer: dies with their stage or memory, and the load of every link between them.

import { nth, tone } from "../base/colours.js";
import { choice, h, legend, redrawn, s, section } from "../base/dom.js";
import { bytes, percent, seconds } from "../base/units.js";

const filled = (share) => `hsl(210 70% ${88 - 55 * Math.min(1, share)}%)`;

export function waferView({ wafer }) {
  const colour = choice("wafer-colour", [["stage", "stage"], ["memory", "memory in use"]]);
  const plot = h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Map of the wafer" }), keys = h("div");
  const most = Math.max(1, ...wafer.links.map((link) => link.bytes_per_microbatch));

  function linkShapes(middle) {
    return wafer.links.filter((link) => link.bytes_per_microbatch > 0).map(({ from: [x1, y1], to: [x2, y2], bytes_per_microbatch: load }) => {
      // Both directions of a link lie side by side.
      const ox = y1 === y2 ? 0 : y2 > y1 ? -3 : 3, oy = x1 === x2 ? 0 : x2 > x1 ? 3 : -3;
      return s("line", {
        class: "link", x1: middle(x1) + ox, y1: middle(y1) + oy, x2: middle(x2) + ox, y2: middle(y2) + oy,
        stroke: tone("slate"), "stroke-width": 0.8 + (4.2 * load) / most, opacity: 0.35 + (0.65 * load) / most,
        tip: `link (${x1}, ${y1}) to (${x2}, ${y2})\n${bytes(load)} per microbatch, ${percent(load / most, 0)} of the busiest`,
      });
    });
  }

  function dieShapes({ x, y, stage, dead, memory_total_bytes: memory }, cell, middle) {
    const byStage = colour.value === "stage", share = memory / wafer.memory_bytes_per_die, idle = stage === null, pad = cell * 0.2;
    const fill = dead ? "none" : idle ? tone("idle") : byStage ? nth(stage) : filled(share);
    const about = dead ? "dead" : idle ? "spare" : `stage ${stage} (${wafer.stages[stage].layers} layers)\n${bytes(memory)} of ${bytes(wafer.memory_bytes_per_die)}`;
    const words = dead ? "×" : idle ? "" : byStage ? stage : percent(share, 0);
    return [
      s("rect", { class: "die", x: x * cell + pad, y: y * cell + pad, width: cell - 2 * pad, height: cell - 2 * pad, rx: 3, fill,
        stroke: tone(dead ? "text" : "mid"), "stroke-dasharray": dead ? "3 3" : "none", tip: `die (${x}, ${y})\n${about}` }),
      s("text", { class: dead ? "" : byStage || share > 0.5 ? "on" : "on pale", x: middle(x), y: middle(y) + 4, "text-anchor": "middle" }, words),
    ];
  }

  function paint() {
    const cell = Math.max(34, Math.min(64, plot.clientWidth / wafer.columns)), middle = (v) => v * cell + cell / 2;
    plot.replaceChildren(s("svg", { width: cell * wafer.columns, height: cell * wafer.rows, id: "wafer-picture", role: "img", "aria-label": "Map of dies" },
      linkShapes(middle),
      wafer.dead_links.map(([[x1, y1], [x2, y2]]) => s("line", { x1: middle(x1), y1: middle(y1), x2: middle(x2), y2: middle(y2),
        stroke: tone("text"), "stroke-width": 2, "stroke-dasharray": "2 3" })),
      wafer.dies.map((die) => dieShapes(die, cell, middle))));
    keys.replaceChildren(
      legend(colour.value === "stage"
        ? wafer.stages.map((stage, i) => [nth(i), `stage ${i}: ${stage.layers} layers, ${seconds(stage.load_s)}`])
        : [[filled(0), "empty"], [filled(1), `full: ${bytes(wafer.memory_bytes_per_die)}`]]),
      legend([[tone("slate"), most > 1 ? `link, up to ${bytes(most)} per microbatch` : "link", "line"],
        ...(wafer.dies.some(({ stage, dead }) => stage === null && !dead) ? [[tone("idle"), "spare die", "edged"]] : []),
        ...(wafer.dies.some((die) => die.dead) ? [["transparent", "dead die", "dashed"]] : []),
        ...(wafer.dead_links.length ? [["transparent", "dead link", "dashed line"]] : [])]));
  }
  colour.addEventListener("input", paint);
  redrawn(plot, paint);
  return section("wafer", "The wafer",
    "Every square is a die. Lines between dies are links: the thicker, the more bytes a microbatch sends over them.",
    h("div", { class: "row controls" }, h("label", {}, "Colour by ", colour)), plot, keys);
}
