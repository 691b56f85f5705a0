// Two or more runs side by side: what was asked of each and what came out, as `atoll compare` has it.

import { h } from "../base/dom.js";
import { pageOf } from "../views/page.js";
import { known } from "./api.js";
import * as state from "./state.js";

export class Runs {
  constructor(runs) {
    this.body = h("div", { class: "stack", id: "compared" });
    const chosen = state.get("with", runs.slice(0, 2).map((run) => run.id).join(",")).split(",");
    this.boxes = runs.map((run) => h("input", { type: "checkbox", value: run.id, checked: chosen.includes(run.id), onchange: () => this.choose() }));
    this.differing = h("input", { type: "checkbox", id: "differing", checked: state.get("all") !== "1",
      onchange: () => state.set({ all: this.differing.checked ? null : "1" }) });
    this.element = h("div", { class: "stack" },
      h("section", { class: "card row", "aria-label": "Runs to compare" },
        this.boxes.map((box) => h("label", { class: "row" }, box, ` ${box.value}`)),
        h("label", { class: "row" }, this.differing, " only what differs")),
      this.body);
    this.draw();
  }

  choose() {
    state.set({ with: this.boxes.filter((box) => box.checked).map((box) => box.value).join(",") });
  }

  changed(names) {
    if (names.some((n) => n === "with" || n === "all")) this.draw();
  }

  async draw() {
    const query = new URLSearchParams(this.boxes.filter((box) => box.checked).map((box) => ["run", box.value]));
    try {
      const view = await known(`/api/compare?${query}`);
      if (this.differing.checked) view.tables = view.tables.map((t) => ({ ...t, rows: t.rows.filter(([, mark]) => mark) }));
      this.body.replaceChildren(pageOf(view, "h2"));
    } catch (error) {
      this.body.replaceChildren(h("p", { class: "warn card", role: "alert" }, error.message));
    }
  }
}
