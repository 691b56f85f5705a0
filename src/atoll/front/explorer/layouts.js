// The home view of a plan: the answer, time and memory of its layouts, and why.

import { answerLines, h } from "../base/dom.js";
import { launchButton } from "../views/cluster.js";
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
    const view = await ask(`/${this.run}/view`);
    const compare = (i) => h("button", { type: "button", onclick: () => state.set({ a: "0", b: String(i), view: "compare" }, true) }, "Compare");
    const times = view.times.map((group) => ({ ...group, rows: group.rows.map((row, i) => ({ ...row, action: i ? compare(i) : null })) }));
    this.element.replaceChildren(
      h("section", { class: "card", id: "answer", "aria-labelledby": "answer-title" },
        h("h2", { id: "answer-title" }, view.title), answerLines(view.summary),
        h("div", { class: "row" },
          view.launch && launchButton(view),
          h("button", { type: "button", onclick: () => state.set({ view: "whatif" }, true) }, "What if"),
          h("button", { type: "button", onclick: () => state.set({ view: "report" }, true) }, "Report"),
          h("a", { class: "button", href: `/api/runs/${this.run}/plan.json` }, "Plan as JSON"))),
      h("div", { class: "halves" }, timesView({ ...view, times }), memoryView(view)),
      ...(view.reasons?.length ? [reasonsView(view)] : []));
  }
}
