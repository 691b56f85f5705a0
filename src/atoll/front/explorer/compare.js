// Two designs, or two layouts, side by side.

import { stackedBars } from "../base/bars.js";
import { PARAMETERS, PLAN, shown, title } from "../base/columns.js";
import { h, table } from "../base/dom.js";
import { bytes, number, percent, seconds } from "../base/units.js";
import { ask } from "./api.js";
import * as state from "./state.js";

const columns = () => ["score", "step_time_s", "area_mm2", "power_W", "energy_per_token_J", ...PARAMETERS, ...PLAN];
const STEP = [
  ["step_time_s", "Step time", seconds], ["samples_per_s", "Throughput (samples/s)", number], ["tokens_per_s_per_device", "Tokens/s per device", number],
  ["mfu", "MFU (masked attention and recomputation not counted)", percent], ["devices", "Devices", number], ["tensor", "Tensor parallel (tp)", number], ["pipeline", "Pipeline stages (pp)", number],
  ["data", "Data parallel (dp)", number], ["microbatch", "Microbatch", number], ["microbatches", "Microbatches per replica", number], ["recompute", "Recomputation", String],
];

export class Compare {
  constructor(run, kind) {
    this.run = run;
    this.kind = kind;
    this.body = h("div", { class: "stack" });
    const field = (letter) => {
      const input = h("input", { type: "text", inputmode: "numeric", id: `field-${letter}`, size: "8" });
      input.addEventListener("change", () => state.set({ [letter]: input.value.trim() || null }));
      return [h("label", { class: "row" }, h("span", { class: `tag ${letter}` }, letter.toUpperCase()), kind === "plan" ? "layout " : "design ", input), input];
    };
    const [a, inputA] = field("a"), [b, inputB] = field("b");
    this.inputs = { a: inputA, b: inputB };
    this.element = h("div", { class: "stack" },
      h("section", { class: "card row" }, a, b,
        h("button", { type: "button", onclick: () => state.set({ a: state.get("b") || null, b: state.get("a") || null }) }, "Swap"),
        h("label", { class: "row" }, (this.differing = h("input", { type: "checkbox", id: "differing", checked: state.get("differing") === "1",
          onchange: () => state.set({ differing: this.differing.checked ? "1" : null }) })), " only what differs"),
        kind === "plan" ? h("span", { class: "muted" }, "0 is the answer, 1 and up are its alternatives") : h("span", { class: "muted" }, "choose them in Designs, or type their numbers")),
      this.body);
    this.draw();
  }

  changed(names) {
    if (names.some((n) => n === "a" || n === "b" || n === "differing")) this.draw();
  }

  async defaults() {
    if (this.kind === "plan") return ["0", (await ask(`/${this.run}`)).layouts > 1 ? "1" : "0"];
    const { rows } = await ask(`/${this.run}/table`, new URLSearchParams({ limit: 2 }));
    return [rows[0]?.chip, rows[1]?.chip ?? rows[0]?.chip].map(String);
  }

  async draw() {
    try {
      const [first, second] = state.get("a") && state.get("b") ? [] : await this.defaults();
      const chips = [state.get("a") || first, state.get("b") || second];
      [this.inputs.a.value, this.inputs.b.value] = chips;
      const steps = await Promise.all(chips.map((chip) => ask(`/${this.run}/whatif`, new URLSearchParams({ chip })).catch((error) => ({ problem: error.message }))));
      const designs = this.kind === "plan" ? null : await Promise.all(chips.map((chip) => ask(`/${this.run}/design/${encodeURIComponent(chip)}`)));
      this.body.replaceChildren(...this.sections(chips, steps, designs));
    } catch (error) {
      this.body.replaceChildren(h("p", { class: "warn card", role: "alert" }, error.message));
    }
  }

  sections(chips, steps, designs) {
    const heads = () => ["a", "b"].map((letter, i) => [h("span", { class: `tag ${letter}` }, letter.toUpperCase()), ` ${chips[i]}`]);
    const beside = (rows) => table(["", ...heads(), "B / A"], this.differing.checked ? rows.filter((row) => row.at(-1) !== "same") : rows, { class: "wrap" });
    const line = (name, a, b, format) => [name, format(a), format(b), ratio(a, b)];
    const card = (name, ...content) => h("section", { class: "card" }, h("h2", {}, name), content);
    const halves = (left, right) => [h("div", { class: "halves" }, h("div", { class: "stack" }, left), h("div", { class: "stack" }, right))];
    const design = designs && card("Designs", beside(columns().map((n) => line(title(n), designs[0][n], designs[1][n], (v) => shown(n, v)))));
    const problem = steps.find((s) => s.problem);
    if (problem) return halves([design].filter(Boolean), [h("p", { class: "card warn", role: "alert" }, problem.problem)]);
    const labels = [`A ${chips[0]}`, `B ${chips[1]}`];
    const step = card(designs ? "The step" : "Layouts", beside(STEP.map(([n, label, format]) => line(label, steps[0][n], steps[1][n], format))),
      designs ? null : ["A", "B"].map((letter, i) => h("p", { class: "muted below" }, `${letter}: ${steps[i].layout}`)));
    const time = card("Where a step's time goes", stackedBars(steps.map((s, i) => ({ name: labels[i], parts: s.parts_s })), seconds));
    const memory = card("Memory of the fullest device", stackedBars(steps.map((s, i) => ({ name: labels[i], parts: s.memory_bytes })), bytes));
    return designs ? halves([design, memory], [time, step]) : halves([step], [time, memory]);
  }
}

function ratio(a, b) {
  if (typeof a !== "number" || typeof b !== "number" || !a) return a === b ? "same" : "";
  if (Math.abs(b / a - 1) < 5e-5) return "same";
  const r = b / a;
  return r > 0.5 && r < 2 ? `${r > 1 ? "+" : "−"}${percent(Math.abs(r - 1), Math.abs(r - 1) < 0.001 ? 2 : 1)}` : `${number(r, 3)}×`;
}
