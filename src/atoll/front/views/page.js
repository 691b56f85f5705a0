// The page of an answer, section by section: a report's, and a view of the explorer.

import { figures, h } from "../base/dom.js";
import { chipView } from "./chip.js";
import { clusterView, launchView } from "./cluster.js";
import { comparisonView } from "./comparison.js";
import { baselinesView, memoryView, reasonsView, sensitivityView, timesView } from "./parts.js";
import { pipelineView } from "./pipeline.js";
import { scheduleView } from "./schedule.js";
import { plotView, tableView } from "./several.js";
import { spaceView } from "./space.js";
import { waferView } from "./wafer.js";

export function pageOf(data) {
  const sections = [
    data.chip && chipView(data),
    data.wafer && waferView(data),
    data.space && spaceView(data),
    data.cluster && clusterView(data),
    data.plot && plotView(data),
    ...(data.tables ?? []).map(tableView),
    data.times.length && timesView(data),
    data.baselines?.length && baselinesView(["this answer", data.score], data.baselines, data.unit),
    data.comparison && comparisonView(data),
    data.reasons?.length && reasonsView(data),
    data.models.some((model) => model.layers.length) && scheduleView(data),
    data.models.some((model) => model.pipeline) && pipelineView(data),
    data.models.length && memoryView(data),
    data.sensitivity && sensitivityView(data),
    data.launch && launchView(data),
  ].filter(Boolean);
  const link = (node) => h("a", { href: `#${node.id}` }, node.querySelector("h2").textContent.replace(/[:,].*/, ""));
  return h("div", { class: "stack" },
    h("h1", {}, data.title),
    h("p", { class: "lead", id: "answer" }, data.sentence),
    h("p", { class: "proof", id: "certificate" }, data.certificate),
    data.given && h("p", { class: "proof", id: "given" }, `Given: ${data.given}.`),
    data.notes.map((note) => h("p", { class: "proof warn" }, note)),
    h("nav", { class: "contents", "aria-label": "Contents" }, sections.map(link)),
    data.facts.length ? h("section", { class: "card", id: "facts", "aria-label": "Figures" }, figures(data.facts)) : null,
    sections);
}
