// The view of a plan: its layouts, best first, and why.

import { figures, h, section, table } from "../base/dom.js";
import { bytes, number, percent, seconds } from "../base/units.js";
import { memoryView, reasonsView, timesView } from "../views/parts.js";
import { ask } from "./api.js";
import * as state from "./state.js";

export class Layouts {
  constructor(run) {
    this.run = run;
    this.element = h("div", { class: "stack" }, h("p", { class: "muted" }, "Estimating."));
    this.draw().catch((error) => this.element.replaceChildren(h("p", { class: "card warn", role: "alert" }, error.message)));
  }

  changed() {}

  async draw() {
    const [{ plan }, view] = await Promise.all([ask(`/${this.run}`), ask(`/${this.run}/view`)]);
    const words = plan.layout_words ?? Object.entries(plan.layout).map(([k, v]) => `${k} ${v}`).join(", ");
    const rows = [[words, plan.step_time_s, 0], ...(plan.runners_up ?? []).map((o) => [o.layout, o.step_time_s, o.slower])];
    const compare = (i) => h("button", { type: "button", onclick: () => state.set({ a: "0", b: String(i), view: "compare" }, true) }, "Compare");
    const memory = plan.memory_bytes;
    this.element.replaceChildren(
      h("section", { class: "card", id: "answer" }, h("h2", {}, `${plan.model} on ${number(plan.devices)} ${plan.device}`),
        h("p", { id: "certificate" }, view.certificate),
        figures([["Step time", seconds(plan.step_time_s)], ["Tokens/s per device", number(plan.tokens_per_s_per_device)], ["MFU (masked attention and recomputation not counted)", percent(plan.mfu)],
          ["Memory", bytes(memory.needed ?? memory.total), `of ${bytes(memory.capacity)}`], ["Global batch", number(plan.global_batch), "sequences"], ["Sequence", number(plan.sequence), "tokens"]]),
        h("div", { class: "row" },
          h("button", { type: "button", onclick: () => state.set({ view: "whatif" }, true) }, "What if"),
          h("button", { type: "button", onclick: () => state.set({ view: "report" }, true) }, "Report"),
          h("a", { class: "button", href: `/api/runs/${this.run}/plan.json` }, "Plan as JSON"))),
      section("layouts", "Layouts", "", table(["Layout", "Step time", "Slower by", ""], rows.map(([layout, time, slower], i) =>
        [`${i}: ${layout}`, seconds(time), i ? percent(slower) : "–", i ? compare(i) : "best"]), { class: "wrap" })),
      h("div", { class: "halves" }, timesView(view), memoryView(view)),
      ...(view.reasons?.length ? [reasonsView(view)] : []));
  }
}
