// The report of a run: the same sections as in the file that `atoll report` writes.

import { h } from "../base/dom.js";
import { pageOf } from "../views/page.js";
import { ask } from "./api.js";

export class Report {
  constructor(run) {
    this.element = h("div", { class: "stack", id: "report" }, h("p", { class: "muted", role: "status" },
      "Drawing the report: bounds of all chips and neighbours of the best one are computed again."));
    this.draw(run).catch((error) => this.element.replaceChildren(h("p", { class: "card warn", role: "alert" }, error.message)));
  }

  changed() {}

  async draw(run) {
    const page = pageOf(await ask(`/${run}/view`), "h2");
    this.element.replaceChildren(h("div", { class: "row end" },
      h("a", { class: "button", id: "report-file", href: `/api/runs/${run}/report.html` }, "Report as one file")), page);
  }
}
