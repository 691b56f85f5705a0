// The view of a plan: its layouts, best first, and why.

import { ask } from "./api.js";
import { figures, stackedBars } from "./bars.js";
import { h } from "./dom.js";
import * as state from "./state.js";
import { bytes, number, percent, seconds } from "./units.js";

export class Layouts {
  constructor(run) {
    this.run = run;
    this.element = h("div", { class: "stack" }, h("p", { class: "muted" }, "Estimating."));
    this.draw().catch((error) => this.element.replaceChildren(h("p", { class: "card warn", role: "alert" }, error.message)));
  }

  changed() {}

  async draw() {
    const { plan } = await ask(`/${this.run}`);
    const proof = plan.certificate;
    const others = plan.runners_up ?? [];
    const words = plan.layout_words ?? Object.entries(plan.layout).map(([k, v]) => `${k} ${v}`).join(", ");
    const rows = [[words, plan.step_time_s, 0], ...others.map((o) => [o.layout, o.step_time_s, o.slower])];
    const memory = plan.memory_bytes;
    const reserve = Math.max(0, (memory.needed ?? memory.total) - memory.total);
    this.element.replaceChildren(...[
      h("section", { class: "card", id: "answer" }, h("h2", {}, `${plan.model} on ${number(plan.devices)} ${plan.device}`),
        h("p", { id: "certificate" }, proof
          ? `${proof.proven ? "Proven fastest" : "Not proven fastest"} of ${number(proof.layouts)} layouts: ${number(proof.too_large)} cannot fit, ${number(proof.too_slow)} cannot be faster, ${number(proof.estimated)} were estimated.${proof.excluded?.length ? ` Not tried: ${proof.excluded.join("; ")}.` : ""}`
          : "One layout, estimated."),
        figures([["Step time", seconds(plan.step_time_s)], ["Tokens/s per device", number(plan.tokens_per_s_per_device)], ["MFU (masked attention and recomputation not counted)", percent(plan.mfu)],
          ["Memory", bytes(memory.needed ?? memory.total), `of ${bytes(memory.capacity)}`], ["Global batch", number(plan.global_batch), "sequences"], ["Sequence", number(plan.sequence), "tokens"]]),
        h("div", { class: "row" },
          h("button", { type: "button", onclick: () => state.set({ view: "whatif" }, true) }, "What if"),
          h("a", { class: "button", href: `/api/runs/${this.run}/plan.json` }, "Plan as JSON"))),
      h("div", { class: "halves" },
        h("section", { class: "card" }, h("h2", {}, "Where the step's time goes"),
          stackedBars([["best", Object.fromEntries(Object.entries(plan.breakdown_s).map(([k, v]) => [k.replaceAll("_", " "), v]))]], seconds)),
        h("section", { class: "card" }, h("h2", {}, "Memory of the fullest device"),
          stackedBars([["best", { ...memory.parts, reserve }]], bytes, memory.capacity))),
      h("section", { class: "card" }, h("h2", {}, "Layouts"), h("div", { class: "scroll" }, h("table", { class: "wrap" },
        h("thead", {}, h("tr", {}, ["Layout", "Step time", "Slower by", ""].map((t) => h("th", { scope: "col" }, t)))),
        h("tbody", {}, rows.map(([layout, time, slower], i) => h("tr", {}, h("td", {}, `${i}: ${layout}`), h("td", {}, seconds(time)), h("td", {}, i ? percent(slower) : "–"),
          h("td", {}, i ? h("button", { type: "button", onclick: () => state.set({ a: "0", b: String(i), view: "compare" }, true) }, "Compare") : "best"))))))),
      plan.reasons?.length ? h("section", { class: "card" }, h("h2", {}, "Why"), h("ul", {}, plan.reasons.map((r) => h("li", {}, r.why)))) : null,
    ].filter(Boolean));
  }
}
