// Sliders over the conditions of one design or layout; every move is estimated again.

import { stackedBars } from "../base/bars.js";
import { figures, h, say, settled } from "../base/dom.js";
import { bytes, counted, number, percent, seconds } from "../base/units.js";
import { ask, latest } from "./api.js";
import * as state from "./state.js";

const NAMES = ["devices", "link", "hbm_GiB", "hbm_GBps", "microbatch", "tensor", "sequence", "batch", "compute"];
const key = (name) => `w_${name}`;

export class WhatIf {
  constructor(run, kind, models) {
    this.run = run;
    this.kind = kind;
    this.models = models;
    this.asks = latest();
    this.answer = h("div", { class: "stack", id: "answers", "aria-live": "polite" });
    this.sliders = h("div", {});
    this.field = h("input", { type: "text", inputmode: "numeric", size: "8", id: "whatif-chip" });
    this.field.addEventListener("change", () => state.set({ chip: this.field.value.trim() || null, ...cleared() }));
    const model = models.length > 1 ? h("label", {}, "Model ", (this.model = h("select", { onchange: () => state.set({ model: this.model.value, ...cleared() }) },
      models.map((name, i) => h("option", { value: i, selected: String(i) === state.get("model", "0") }, name))))) : null;
    this.element = h("div", { class: "split" },
      h("section", { class: "card" }, h("h2", {}, "What if"),
        h("div", { class: "row" }, h("label", {}, kind === "plan" ? "Layout " : "Design ", this.field), model,
          h("button", { type: "button", id: "reset", onclick: () => state.set(cleared()) }, "Reset")),
        this.sliders,
        kind === "plan" ? h("div", { class: "row" }, (this.again = h("button", { type: "button", id: "again", onclick: () => this.plan() }, "Plan again")),
          h("span", { class: "muted" }, "the best layout under these conditions")) : null),
      this.answer);
    this.estimate = settled(() => this.refresh(), 30);
    // Once the sliders rest, the schedules are solved with more effort.
    this.better = settled(async (query, now) => {
      if (!now.refinable) return;
      query.set("refine", "1");
      const refined = await this.asks(`/${this.run}/whatif`, query).catch(() => null);
      if (refined) this.show(this.base, refined);
    }, 250);
    this.open();
  }

  changed(names) {
    if (names.some((n) => n === "chip" || n === "model")) this.open();
    else if (names.some((n) => n.startsWith("w_"))) { this.place(); this.estimate(); }
  }

  async query() {
    let chip = state.get("chip");
    if (!chip || this.kind === "plan" && !/^\d{1,3}$/.test(chip)) {
      chip = this.kind === "plan" ? "0" : String((await ask(`/${this.run}/table`, new URLSearchParams({ limit: 1 }))).rows[0]?.chip ?? "");
    }
    this.field.value = chip;
    return new URLSearchParams({ chip, model: state.get("model", "0") });
  }

  async open() {
    try {
      this.base = null;
      const query = await this.query();
      this.options = await ask(`/${this.run}/whatif/options`, query);
      this.sliders.replaceChildren(...this.options.sliders.map((s) => this.slider(s)),
        h("p", { class: "muted" }, `Global batch ${number(this.options.global_batch)}. ${this.kind === "plan" ? "The layout is kept until it is planned again; data parallelism follows the devices." : "The chip is kept; pipeline stages, data parallelism and recomputation are chosen anew."} ${this.options.note}`));
      this.place();
      await this.refresh();
    } catch (error) {
      this.sliders.replaceChildren();
      this.answer.replaceChildren(h("p", { class: "card warn", role: "alert" }, error.message));
    }
  }

  slider(given) {
    const output = h("output", { for: key(given.name) });
    const input = h("input", { type: "range", id: key(given.name), min: 0, max: given.values.length - 1, step: 1, value: given.now, "data-name": given.name });
    input.addEventListener("input", () => {
      const index = Number(input.value);
      state.set({ [key(given.name)]: index === given.now ? null : given.values[index] });
    });
    return h("div", { class: "slider", "data-slider": given.name }, h("label", { for: key(given.name) }, given.label), output, input, given.note ? h("small", {}, given.note) : null);
  }

  place() {
    for (const given of this.options?.sliders ?? []) {
      const box = this.sliders.querySelector(`[data-slider="${given.name}"]`);
      const wanted = state.get(key(given.name));
      const at = given.values.findIndex((v) => String(v) === wanted);
      const index = wanted && at >= 0 ? at : given.now;
      const input = box.querySelector("input");
      input.value = index;
      const text = `${number(given.values[index])}${given.unit === "x" ? " ×" : given.unit ? ` ${given.unit}` : ""}`;
      input.setAttribute("aria-valuetext", text);
      box.querySelector("output").textContent = text;
      box.classList.toggle("moved", index !== given.now);
    }
  }

  async moved() {
    const query = await this.query();
    this.base ??= await ask(`/${this.run}/whatif`, query);
    for (const name of NAMES) if (state.get(key(name))) query.set(name, state.get(key(name)));
    return query;
  }

  /** The planner under these conditions: another layout, beside the one as it is. */
  async plan() {
    this.again.disabled = true;
    try {
      const found = await this.asks(`/${this.run}/whatif/plan`, await this.moved());
      if (found) this.show(this.base, found);
    } catch (error) {
      this.answer.replaceChildren(h("p", { class: "card warn", role: "alert" }, error.message));
    }
    this.again.disabled = false;
  }

  async refresh() {
    try {
      const query = await this.moved();
      const now = await this.asks(`/${this.run}/whatif`, query);
      if (!now) return;
      this.show(this.base, now);
      this.better(query, now);
    } catch (error) {
      this.answer.replaceChildren(h("p", { class: "card warn", role: "alert" }, error.message));
    }
  }

  show(base, now) {
    if (base.problem || now.problem) {
      this.answer.replaceChildren(h("p", { class: "card warn", id: "problem", role: "alert" }, now.problem ?? base.problem));
      return;
    }
    const row = (name, field, format, unit = "") => [name, format(now[field]), unit, change(base[field], now[field])];
    const rows = [["as it is", base], ["what if", now]];
    this.answer.replaceChildren(...[
      now.warning ? h("p", { class: "card warn", role: "alert" }, now.warning) : null,
      h("section", { class: "card", id: "whatif-figures" },
        figures([
          row("Throughput", "samples_per_s", number, "samples/s"), row("Step time", "step_time_s", seconds), row("MFU (masked attention and recomputation not counted)", "mfu", percent),
          row("Tokens/s per device", "tokens_per_s_per_device", number),
          ...(now.power_W === null ? [] : [row("Power per device", "power_W", number, "W"),
            row("Energy per token", "energy_per_token_J", (v) => number(v * 1e3), "mJ")]),
        ]),
        h("p", { class: "muted", id: "answered", "data-ms": now.answered_ms },
          `${now.layout} on ${counted(now.devices, "device")}, ${number(now.microbatches)} microbatches per replica, recomputation ${now.recompute}. ` +
          `${now.schedules ? `${this.kind === "plan" ? "Planned again:" : "Schedules"} ${now.schedules}. ` : ""}Answered in ${number(now.answered_ms, 2)} ms.`)),
      h("section", { class: "card" }, h("h2", {}, "Where a step's time goes"), stackedBars(rows.map(([name, v]) => ({ name, parts: v.parts_s })), seconds)),
      h("section", { class: "card" }, h("h2", {}, `Memory of the fullest device, of ${bytes(now.memory_capacity_bytes)}`),
        stackedBars(rows.map(([name, v]) => ({ name, parts: v.memory_bytes })), bytes, now.memory_capacity_bytes)),
    ].filter(Boolean));
    say(`${number(now.samples_per_s)} samples per second`);
  }
}

const cleared = () => Object.fromEntries(NAMES.map((name) => [key(name), null]));

function change(from, to) {
  if (!from || Math.abs(to / from - 1) < 5e-5) return "";
  return `${to > from ? "+" : "−"}${percent(Math.abs(to / from - 1))} against as it is`;
}
