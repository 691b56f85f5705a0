// The page of an answer, section by section: a report's, and a view of the explorer.

import { answerLines, figures, h, section } from "../base/dom.js";
import { chipView } from "./chip.js";
import { clusterView, launchButton, launchView } from "./cluster.js";
import { comparisonView } from "./comparison.js";
import { baselinesView, memoryView, reasonsView, sensitivityView, timesView } from "./parts.js";
import { pipelineView } from "./pipeline.js";
import { scheduleView } from "./schedule.js";
import { chartsView, tableView } from "./several.js";
import { spaceView } from "./space.js";
import { waferView } from "./wafer.js";

const EARLIER = ["Note", "Written by an earlier version of Atoll without a summary; run the same command again for one."];

const EMPTY = { summary: [], details: [], facts: [], charts: [], tables: [], times: [], models: [] };

/** `heading`: the tag of the title, "h1" where nothing else is on the page. What `page` has not has no section. */
export function pageOf(page, heading = "h1") {
  const data = { ...EMPTY, ...page };
  const sections = [
    (data.details.length || data.facts.length) && section("details", "Assumptions and proof", "", answerLines(data.details), figures(data.facts)),
    data.chip && chipView(data),
    data.wafer && waferView(data),
    data.space && spaceView(data),
    data.cluster && clusterView(data),
    data.charts.length && chartsView(data),
    ...data.tables.map(tableView),
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
    h(heading, { class: "title" }, data.title),
    h("section", { class: "card", id: "answer", "aria-label": "Answer" }, answerLines(data.summary.length ? data.summary : [EARLIER]),
      data.launch && h("div", { class: "row" }, launchButton(data))),
    h("nav", { class: "contents", "aria-label": "Contents" }, sections.map(link)),
    sections);
}
