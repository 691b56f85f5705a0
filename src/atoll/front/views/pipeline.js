// The pipeline over one step: a lane for each stage, bubbles included; zoom and scroll.

import { tone } from "../base/colours.js";
import { h, ink, legend, redrawn, section, tip } from "../base/dom.js";
import { sharp } from "../base/plot.js";
import { counted, number, percent, seconds, ticks } from "../base/units.js";

const COLOURS = {
  bubble: "idle", forward: "blue", backward: "orange", "weight gradient": "green", "gradient reduction": "vermilion",
  optimizer: "pink", "gradient accumulation": "sky",
};
const colourOf = (name) => COLOURS[name] ?? "grey";
const MOST_ZOOM = 64, WIDEST = 30000;

export function pipelineView({ models }) {
  const shown = models.filter((model) => model.pipeline);
  return section("pipeline", "The pipeline over one step",
    "One row per stage. Pale gaps are bubbles, in which the stage waits.",
    shown.map((model, i) => [shown.length > 1 ? h("h3", {}, model.model) : null, onePipeline(model.pipeline, i)]));
}

function onePipeline(line, index) {
  const { names, stages } = line;
  const idle = line.idle_s.reduce((a, b) => a + b, 0) / line.idle_s.length / line.step_time_s;
  const about = [
    `${counted(stages.length, "stage")}, ${number(line.microbatches)} microbatches, a step of ${seconds(line.step_time_s)}; stages wait ${percent(idle)} of it on average.`,
    Math.abs(line.stretch - 1) > 5e-5 && `Times are scaled by ${line.stretch.toFixed(4)} to the estimated step.`,
    line.end_s > 1.0001 * line.step_time_s && "Steps follow each other without a barrier: later stages begin and end later.",
    line.left_out && `${number(line.left_out)} passes in the middle are not drawn.`,
  ].filter(Boolean).join(" ");
  const lane = stages.length > 16 ? 14 : 24, every = Math.ceil(stages.length / 32);
  const canvas = h("canvas", { id: `pipeline-plot-${index}`, role: "img", "aria-label": "Passes of every stage over time" });
  const scroll = h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Pipeline timeline" }, canvas);
  const state = h("span", { class: "muted", "aria-live": "polite" });
  let width = 0, zoom = 1;

  function paint() {
    const height = lane * stages.length + 26;
    width = Math.min(WIDEST, Math.max(240, scroll.clientWidth) * zoom);
    canvas.style.width = `${width}px`;
    const pen = sharp(canvas, width, height);
    const fx = (v) => (width * v) / line.end_s;
    const fills = names.map((name) => ink(colourOf(name))), lineColour = ink("line"), dark = ink("page");
    stages.forEach((row, i) => {
      const top = i * lane + 1, tall = lane - 3;
      pen.fillStyle = lineColour;
      pen.fillRect(0, top, width, tall);
      for (const [k, start, end, microbatch] of row) {
        const x = fx(start), w = Math.max(0.3, fx(end) - x);
        pen.fillStyle = fills[k];
        pen.fillRect(x, top, w > 3 ? w - 0.7 : w, tall);
        if (microbatch === undefined || w <= 15 || tall <= 12) continue;
        pen.fillStyle = names[k] === "backward" ? "#000" : dark;
        pen.textAlign = "center";
        pen.textBaseline = "middle";
        pen.fillText(microbatch, x + w / 2, top + tall / 2 + 1);
      }
    });
    pen.fillStyle = ink("muted");
    pen.textBaseline = "top";
    for (const v of ticks(0, line.end_s, width / 110)) {
      if (fx(v) > width - 30) continue;
      pen.textAlign = fx(v) < 20 ? "left" : "center";
      pen.fillText(seconds(v), fx(v), height - 18);
    }
    state.textContent = `×${zoom}`;
  }

  function tell(event) {
    const box = canvas.getBoundingClientRect();
    const at = ((event.clientX - box.left) / width) * line.end_s, i = Math.floor((event.clientY - box.top) / lane);
    const found = stages[i]?.find(([, start, end]) => start <= at && at < end);
    if (!found) return tip();
    const [k, start, end, microbatch, chunk] = found;
    const what = microbatch === undefined ? "" : ` of microbatch ${microbatch}${chunk ? `, chunk ${chunk}` : ""}`;
    tip(`stage ${i}: ${names[k]}${what}\n${seconds(end - start)} from ${seconds(start)}`, event.clientX, event.clientY);
  }

  function change(factor) {
    const middle = (scroll.scrollLeft + scroll.clientWidth / 2) / width;
    zoom = Math.max(1, Math.min(MOST_ZOOM, zoom * factor));
    paint();
    scroll.scrollLeft = middle * width - scroll.clientWidth / 2;
  }
  canvas.addEventListener("pointermove", tell);
  canvas.addEventListener("click", tell);
  canvas.addEventListener("pointerleave", () => tip());
  redrawn(scroll, paint);
  return [
    h("p", { class: "muted" }, about),
    h("div", { class: "row controls" },
      h("button", { type: "button", onclick: () => change(0.5) }, "zoom out"),
      h("button", { type: "button", id: `pipeline-zoom-${index}`, onclick: () => change(2) }, "zoom in"), state),
    h("div", { class: "lanes" },
      h("div", { class: "muted" }, stages.map((_, i) => h("div", { style: { height: `${lane}px`, lineHeight: `${lane}px`, fontSize: `${Math.min(13, lane - 2)}px` } },
        i % every ? "" : `stage ${i}`))), scroll),
    legend(names.map((name) => [tone(colourOf(name)), name, name === "bubble" ? "edged" : ""])),
  ];
}
