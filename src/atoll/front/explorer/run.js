// The view of a search: its state, its answer, score and bound over time.

import { COLUMNS } from "../base/columns.js";
import { answerLines, download, figures, h, legend, section, table } from "../base/dom.js";
import { Plot, padded } from "../base/plot.js";
import { counted, duration, number, percent } from "../base/units.js";
import { baselinesView } from "../views/parts.js";
import { ask } from "./api.js";
import * as state from "./state.js";

/** What a search looks at, by the kind of a run. */
export const NOUNS = { search: "chip", wafer: "candidate", planning: "layout" };

export class RunView {
  constructor(run, single) {
    this.run = run;
    this.single = single;
    this.points = [];
    this.canvas = h("canvas", { class: "plot", id: "progress", role: "img", "aria-label": "Best score and bound over the time of the search" });
    this.plot = new Plot(this.canvas, 280, () => this.draw());
    this.top = h("section", { class: "card", id: "answer", "aria-label": "Answer" });
    this.side = h("div", { class: "stack" });
    this.element = h("div", { class: "stack" }, this.top,
      h("div", { class: "halves" },
        h("section", { class: "card" },
          h("div", { class: "row end" }, h("h2", {}, "Best score and upper bound over time"),
            h("button", { type: "button", onclick: () => this.canvas.toBlob((b) => download(b, `${run}-progress.png`)) }, "PNG")),
          this.canvas,
          legend([["var(--blue)", "best design so far", "line"], ["var(--front)", "upper bound", "line"]])),
        this.side));
    this.update();
  }

  changed() {}

  async update() {
    const [details, found] = await Promise.all([ask(`/${this.run}`), ask(`/${this.run}/progress`)]);
    this.points = found.progress;
    const result = details.result ?? {}, unit = COLUMNS.score.unit;
    const wafer = details.kind === "wafer", planning = details.kind === "planning", chips = details.kind === "search";
    const proof = result.certificate;
    const live = details.state === "running";
    const sentence = proof
      ? proof.sentence
      : details.gap !== null && details.gap !== undefined
        ? `So far: the best of ${counted(details.total, planning ? "layout" : "architecture")} may be up to ${percent(details.gap / (1 - details.gap), 2)} better.`
        : "No design is evaluated yet.";
    this.top.replaceChildren(...[
      h("h2", {}, `${details.models.join(", ")} on ${counted(details.devices, wafer ? "die" : "device")}`),
      h("div", { id: "certificate" }, !live && result.summary?.length ? answerLines(result.summary) : h("p", {}, sentence)),
      details.trouble ? h("p", { class: "warn", role: "alert" }, details.trouble) : null,
      figures([
        [`Best ${COLUMNS.score.label.toLowerCase()}`, number(details.score || NaN), unit],
        ["Gap to the bound", details.gap === null ? "–" : percent(details.gap, 2)],
        ["Not ruled out yet", number(details.left), `${NOUNS[details.kind]}s`],
        ...(!chips ? [] : [["Evaluated", number(details.evaluated), "chips with memory"], ["Designs on record", number(details.designs)]]),
        ["Searched for", duration(details.seconds)],
      ]),
      h("div", { class: "row" },
        !chips ? null : h("button", { type: "button", onclick: () => state.set({ view: "designs" }, true) }, "Explore the designs"),
        proof ? [h("button", { type: "button", onclick: () => state.set({ view: "report" }, true) }, "Report"),
          h("a", { class: "button", href: `/api/runs/${this.run}/result.json` }, "Result as JSON")] : null),
    ].filter(Boolean));
    const baselines = Object.entries(result.baselines ?? {}).map(([name, score]) => ({ name, score, remark: result.baseline_remarks[name] }));
    const job = details.job;
    const asked = wafer
      ? [["Wafer", job.wafer], ["Batch", number(job.batch)], ["Microbatches", job.microbatches.join(", ")], ["Optimizer", job.optimizer]]
      : planning ? [["Device", job.device], ["Devices", number(job.devices)], ["Batch", number(job.batch)], ["Optimizer", job.optimizer]]
      : [["Devices", number(job.devices)], ["Global batch", number(job.global_batch)], ["Microbatches", job.microbatches.join(", ")],
        ["Tensor parallel (tp)", job.tensor_widths.join(", ")], ["Space", job.space ?? "the template's own"], ["Profile", job.profile], ["Recomputation", job.recompute],
        ["Tolerance", percent(job.tolerance, 2)]];
    const rows = [...asked, ["Runs on", `${details.executor} (process ${details.pid} on ${details.host})`], ["Phase", details.phase]];
    this.side.replaceChildren(...[
      baselines.length ? baselinesView(["this search", details.score], baselines, unit || "score") : null,
      section("job", "Job", "", table([], rows, { class: "wrap told" })),
    ].filter(Boolean));
    this.plot.redraw();
  }

  draw() {
    const { plot, points } = this;
    const bounded = points.filter((p) => p.bound !== null && p.bound > 0);
    const scored = points.filter((p) => p.score > 0);
    if (!bounded.length && !scored.length) return;
    const values = [...bounded.map((p) => p.bound), ...scored.map((p) => p.score)];
    const end = points.at(-1).seconds;
    const unit = COLUMNS.score.unit;
    plot.axes([0, end || 1], padded([Math.min(...values), Math.max(...values)], 0.08), "Time (s)", `${COLUMNS.score.label}${unit ? ` (${unit})` : ""}`);
    const until = (list, name) => [...list.map((p) => [p.seconds, p[name]]), ...(list.length ? [[end, list.at(-1)[name]]] : [])];
    plot.path(until(bounded, "bound"), "front", { dash: [6, 3], stairs: true });
    plot.path(until(scored, "score"), "blue", { width: 2.5, stairs: true });
  }
}
