// Runs, views, the theme, and keeping up with a search that is still writing.

import { COLUMNS, nameParameters, nameScore } from "../base/columns.js";
import { h, say } from "../base/dom.js";
import { counted, number } from "../base/units.js";
import { ask, known } from "./api.js";
import { Check } from "./check.js";
import { Compare } from "./compare.js";
import { Designs } from "./designs.js";
import { Layouts } from "./layouts.js";
import { Report } from "./report.js";
import { NOUNS, RunView } from "./run.js";
import { Runs } from "./runs.js";
import * as state from "./state.js";
import { WhatIf } from "./whatif.js";

const VIEWS = {
  search: { run: "Answer", designs: "Designs", compare: "Compare", whatif: "What if", report: "Report" },
  wafer: { run: "Answer", report: "Report" },
  planning: { run: "Progress" },
  sweep: { report: "Report" },
  plan: { layouts: "Answer", compare: "Compare", whatif: "What if", report: "Report" },
};
const byId = (id) => document.getElementById(id);
let runs = [], leftOut = [], view = null, present = "";

/** The run that the address names, the first if it names none; undefined where it is not here. */
const current = () => (state.get("run") ? runs.find((run) => run.id === state.get("run")) : runs[0]);
const viewName = (run) => (state.get("view") in VIEWS[run.kind] ? state.get("view") : Object.keys(VIEWS[run.kind])[0]);

function show() {
  if (state.get("view") in DOORS) return void showDoor(state.get("view"));
  const run = current();
  if (!run) return showMissing(state.get("run"));
  const name = viewName(run);
  drawHead(run, name);
  if (present === `${run.id} ${name}`) return;
  present = `${run.id} ${name}`;
  nameParameters(run.parameters ?? []);
  const single = nameScore(run.models ?? []);
  const made = {
    run: () => new RunView(run.id, single), designs: () => new Designs(run.id, single), layouts: () => new Layouts(run.id),
    compare: () => new Compare(run.id, run.kind), report: () => new Report(run.id), whatif: () => new WhatIf(run.id, run.kind, run.models),
  };
  view = made[name]();
  byId("view").replaceChildren(h("h1", { class: "unseen" }, `${VIEWS[run.kind][name]} of ${run.id}`), view.element);
  byId("view").dataset.view = name;
  document.title = `${VIEWS[run.kind][name]}, ${run.id} – Atoll`;
}

/** Views that belong to no run. */
const DOORS = {
  check: ["launch file", "Check a launch file", async () => new Check((await known("/api/check")).devices)],
  runs: ["runs", "Compare runs", async () => new Runs(runs.filter((run) => run.state !== "running" && run.kind !== "sweep"))],
};

async function showDoor(name) {
  const [badge, title, made] = DOORS[name];
  drawList();
  byId("badge").textContent = badge;
  byId("badge").className = "badge";
  byId("tabs").replaceChildren();
  byId("tabs").dataset.kind = "";
  if (present === name) return;
  present = name;
  view = await made();
  byId("view").replaceChildren(h("h1", { class: "unseen" }, title), view.element);
  byId("view").dataset.view = name;
  document.title = `${title} – Atoll`;
}

/** Another run must not stand in for the one that was asked for. */
function showMissing(name) {
  const reason = leftOut.find((other) => other.id === name)?.reason ?? `No run ${name} here; choose one of the list. It has the folders that were there when atoll serve started.`;
  drawList();
  byId("run").value = name; // none of the list, where it has no such name
  byId("badge").textContent = "not here";
  byId("badge").className = "badge";
  byId("tabs").replaceChildren();
  byId("tabs").dataset.kind = "";
  present = "";
  view = null;
  byId("view").replaceChildren(h("h1", { class: "unseen" }, "Run not found"),
    h("p", { class: "card warn", role: "alert", id: "missing" }, reason));
  document.title = "Atoll explorer";
}

function drawList() {
  const select = byId("run");
  if (select.options.length === runs.length + leftOut.length) return;
  select.replaceChildren(
    ...runs.map((r) => h("option", { value: r.id }, `${r.id}: ${r.axes ? `sweep of ${r.axes.join(", ")}` : r.models.join(", ")}`)),
    ...leftOut.map((r) => h("option", { value: r.id, title: r.reason }, `${r.id}: cannot be shown`)),
  );
}

function drawHead(run, name) {
  drawList();
  byId("run").value = run.id;
  const badge = byId("badge");
  const done = ["plan", "sweep"].includes(run.kind) ? run.kind : run.state;
  const reading = run.reading && !run.loaded ? `, reading ${counted(run.reading, "design")}` : "";
  const text = run.state === "running" ? `running: ${number(run.left)} of ${counted(run.total, NOUNS[run.kind])} left${reading}` : `${done}${reading}`;
  if (badge.textContent !== text) badge.textContent = text;
  badge.className = `badge ${run.state}`;
  const tabs = byId("tabs");
  const wanted = Object.entries(VIEWS[run.kind]);
  if (tabs.dataset.kind !== run.kind) {
    tabs.dataset.kind = run.kind;
    tabs.replaceChildren(...wanted.map(([key, label]) => h("button", { type: "button", "data-view": key, onclick: () => state.set({ view: key }, true) }, label)));
  }
  for (const button of tabs.children) {
    if (button.dataset.view === name) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
}

/** Asks what is new: often while a search runs, seldom otherwise. */
async function keepUp() {
  let pause = 4000;
  try {
    const before = current();
    runs = (await ask("")).runs;
    const now = current();
    if (!now || present in DOORS) return void setTimeout(keepUp, pause);
    const moved = before && (before.version !== now.version || before.state !== now.state || before.seconds !== now.seconds);
    if (before && before.kind !== now.kind) show();
    drawHead(now, viewName(now));
    if (moved && view instanceof RunView) await view.update();
    if (before && before.version !== now.version && view instanceof Designs) await view.all();
    if (now.state === "running" || now.reading || (now.kind === "search" && now.loaded < now.designs)) pause = 1000;
  } catch {
    const badge = byId("badge");
    badge.textContent = "the server does not answer";
    badge.className = "badge failed";
  }
  setTimeout(keepUp, pause);
}

const remembered = {
  get: () => { try { return localStorage.getItem("atoll-theme"); } catch { return null; } },
  set: (value) => { try { localStorage.setItem("atoll-theme", value); } catch { /* private windows have none */ } },
};

function theme(wanted) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  if (wanted) document.documentElement.dataset.theme = wanted;
  const now = wanted ?? (dark ? "dark" : "light");
  byId("theme").textContent = now === "dark" ? "Light" : "Dark";
  dispatchEvent(new Event("theme"));
  return now;
}

async function start() {
  let now = theme(remembered.get());
  byId("theme").addEventListener("click", () => { now = theme(now === "dark" ? "light" : "dark"); remembered.set(now); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { now = theme(remembered.get()); });
  byId("link").addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(location.href); say("Copied"); byId("link").textContent = "Copied"; }
    catch { byId("link").textContent = "See the address"; }
    setTimeout(() => { byId("link").textContent = "Copy link"; }, 1500);
  });
  for (const name of Object.keys(DOORS)) byId(name).addEventListener("click", () => state.set({ view: name }, true));
  byId("run").addEventListener("change", () => {
    state.forget([...Object.keys(COLUMNS), "a", "b", "model", "offset", "sort", "w_devices", "w_link", "w_hbm_GiB", "w_hbm_GBps", "w_microbatch", "w_tensor", "w_sequence", "w_batch", "w_compute"]);
    if (state.get("view") in DOORS) state.forget(["view"]);
    state.set({ run: byId("run").value }, true);
  });
  try {
    ({ runs, left_out: leftOut } = await ask(""));
  } catch (error) {
    byId("view").replaceChildren(h("p", { class: "card warn", role: "alert" }, error.message));
    return;
  }
  state.watch((names) => {
    const before = present;
    show();
    if (before === present) view?.changed(names);
  });
  show();
  setTimeout(keepUp, 1000);
}

start();
