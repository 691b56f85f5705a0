// The view of all designs: filters, scatter, the chosen design, the table.

import { COLUMNS, PARAMETERS, PLAN, describe, shown, title, withUnit } from "../base/columns.js";
import { download, figures, h, legend, say, settled } from "../base/dom.js";
import { counted, number } from "../base/units.js";
import { ask, latest } from "./api.js";
import { filterBox } from "./filters.js";
import { DesignScatter } from "./scatter.js";
import * as state from "./state.js";

const PAGE = 25;
const axes = () => ["score", "area_mm2", "power_W", "energy_per_token_J", "step_time_s", "samples_per_s", ...PARAMETERS, ...PLAN];
const table = () => ["chip", "score", "area_mm2", "power_W", "energy_per_token_J", "step_time_s", ...PARAMETERS, ...PLAN];

export class Designs {
  constructor(run, single) {
    this.run = run;
    this.hidden = single ? ["samples_per_s"] : [];
    this.asks = { summary: latest(), scatter: latest(), table: latest() };
    this.rows = {};
    this.scatter = new DesignScatter((chip) => this.pick(chip), (xs, ys) => this.brush(xs, ys));
    const choose = (name, label, otherwise) => {
      const select = h("select", { id: name, onchange: () => state.set({ [name]: select.value }) },
        axes().filter((c) => !this.hidden.includes(c)).map((c) => h("option", { value: c, selected: c === state.get(name, otherwise) }, title(c))));
      return h("label", {}, `${label} `, select);
    };
    this.count = h("p", { id: "count", role: "status" });
    this.boxes = h("div", { id: "filters" });
    this.caption = h("p", { class: "muted", id: "caption" });
    this.key = h("div");
    this.chosen = h("section", { class: "card", id: "chosen", "aria-label": "The chosen design" });
    this.table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Designs, scrolls sideways" });
    this.pager = h("div", { class: "row end", id: "pager" });
    this.trouble = h("p", { class: "warn", role: "alert" });
    const wide = matchMedia("(min-width: 901px)").matches;
    this.element = h("div", { class: "split" },
      h("details", { class: "card", open: wide }, h("summary", {}, "Filters"), this.count,
        h("button", { type: "button", id: "clear", onclick: () => this.clear() }, "Clear all"), this.boxes),
      h("div", { class: "stack" },
        h("section", { class: "card", "aria-label": "Scatter" }, this.trouble,
          h("div", { class: "row" }, choose("y", "Vertical axis", "score"), choose("x", "Horizontal axis", "area_mm2"),
            h("button", { type: "button", id: "png", onclick: () => this.png() }, "PNG")),
          this.caption, this.scatter.canvas, this.key),
        this.chosen,
        h("section", { class: "card", "aria-label": "Table" },
          h("div", { class: "row end" }, h("h2", {}, "Designs"), h("span", { class: "row" },
            (this.csv = h("a", { class: "button", id: "csv" }, "CSV")), (this.json = h("a", { class: "button" }, "JSON")))),
          this.table, this.pager)));
    this.refresh = settled(() => this.all(), 40);
    this.all();
  }

  changed(names) {
    const filters = names.some(state.isFilter);
    if (filters) this.refresh();
    else {
      if (names.some((n) => n === "x" || n === "y")) this.drawScatter();
      if (names.some((n) => n === "sort" || n === "offset")) this.drawTable();
      if (names.some((n) => ["chip", "a", "b"].includes(n))) this.drawChosen();
    }
  }

  all() {
    return Promise.all([this.drawFilters(), this.drawScatter(), this.drawTable(), this.drawChosen()]);
  }

  async guarded(work) {
    try { await work(); this.trouble.textContent = ""; } catch (error) { this.trouble.textContent = error.message; }
  }

  drawFilters() {
    return this.guarded(async () => {
      const found = await this.asks.summary(`/${this.run}/summary`, state.filterQuery());
      if (!found) return;
      this.count.textContent = found.count === found.total
        ? counted(found.total, "design") : `${number(found.count)} of ${counted(found.total, "design")}`;
      this.count.dataset.count = found.count;
      document.getElementById("clear")?.toggleAttribute("disabled", state.filters().length === 0);
      const held = document.activeElement?.getAttribute?.("aria-label");
      this.boxes.replaceChildren(...found.histograms.filter((b) => b.column in COLUMNS && !this.hidden.includes(b.column))
        .map((box) => filterBox(box, (text) => state.set({ [box.column]: text, offset: null }))));
      if (held) [...this.boxes.querySelectorAll("input")].find((e) => e.getAttribute("aria-label") === held)?.focus();
      say(this.count.textContent);
    });
  }

  drawScatter() {
    return this.guarded(async () => {
      const query = state.filterQuery();
      query.set("x", state.get("x", "area_mm2"));
      query.set("y", state.get("y", "score"));
      const found = await this.asks.scatter(`/${this.run}/scatter`, query);
      if (!found) return;
      this.data = found;
      this.scatter.show(found, this.picked());
      const front = found.front.length ? `; ${counted(found.front.length, "design")} on the Pareto front` : "";
      this.caption.textContent = found.mode === "cells"
        ? `${counted(found.shown, "design")}, counted in ${number(found.cells.length)} cells of a ${found.grid[0]} × ${found.grid[1]} grid${front}. Drag to look closer; up to 1,500 designs are drawn one by one.`
        : `${counted(found.shown, "design")}, each a point${front}. Drag to look closer.`;
      const most = found.mode === "cells" ? found.cells.reduce((m, c) => Math.max(m, c[2]), 1) : 0;
      this.key.replaceChildren(legend([
        most ? ["linear-gradient(90deg, var(--soft), var(--blue))", `1 to ${counted(most, "design")} in a cell (logarithmic)`, "scale"] : ["var(--blue)", "design", "round"],
        ...(found.front.length ? [["var(--front)", "Pareto front; the best is ringed", "line"]] : []),
        ...["a", "b"].filter((letter) => state.get(letter)).map((letter) => [`var(--${letter})`, letter.toUpperCase(), "round"])]));
    });
  }

  drawTable() {
    return this.guarded(async () => {
      const sort = state.get("sort", "-score"), offset = Number(state.get("offset", "0"));
      const query = state.filterQuery();
      query.set("sort", sort);
      this.csv.href = `/api/runs/${this.run}/designs.csv?${query}`;
      this.json.href = `/api/runs/${this.run}/designs.json?${query}`;
      query.set("offset", offset);
      query.set("limit", PAGE);
      const found = await this.asks.table(`/${this.run}/table`, query);
      if (!found) return;
      const by = sort.replace(/^[+-]/, ""), down = sort.startsWith("-");
      const focused = document.activeElement?.dataset?.sort;
      const head = table().map((name) => h("th", { scope: "col", "aria-sort": name === by ? (down ? "descending" : "ascending") : undefined },
        h("button", { type: "button", "data-sort": name, onclick: () => state.set({ sort: name === by ? `${down ? "+" : "-"}${name}` : `${["score", "samples_per_s"].includes(name) ? "-" : "+"}${name}`, offset: null }) },
          title(name), name === by ? (down ? " ▼" : " ▲") : "")));
      const body = found.rows.map((row) => {
        const line = h("tr", { class: "pick", "data-chip": row.chip, onclick: () => this.pick(row.chip) }, table().map((name) =>
          h("td", {}, name === "chip" ? h("button", { type: "button" }, String(row.chip)) : shown(name, row[name]))));
        if (String(row.chip) === state.get("chip")) line.classList.add("chosen");
        return line;
      });
      this.table.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
      if (focused) this.table.querySelector(`[data-sort="${focused}"]`)?.focus();
      const last = Math.max(0, Math.floor((found.count - 1) / PAGE) * PAGE);
      const go = (text, to, off) => h("button", { type: "button", disabled: off, onclick: () => state.set({ offset: to || null }) }, text);
      this.pager.replaceChildren(
        h("span", { class: "muted" }, found.count ? `${number(offset + 1)} to ${number(Math.min(offset + PAGE, found.count))} of ${number(found.count)}` : "none"),
        h("span", { class: "row" }, go("First", 0, offset === 0), go("Previous", Math.max(0, offset - PAGE), offset === 0),
          go("Next", offset + PAGE, offset >= last), go("Last", last, offset >= last)));
    });
  }

  async row(chip) {
    return (this.rows[chip] ??= await ask(`/${this.run}/design/${encodeURIComponent(chip)}`));
  }

  picked() {
    const found = {};
    for (const [letter, name] of [["chosen", "chip"], ["A", "a"], ["B", "b"]]) {
      const row = this.rows[state.get(name)];
      if (row) found[letter] = row;
    }
    return found;
  }

  drawChosen() {
    return this.guarded(async () => {
      await Promise.all(["a", "b", "chip"].map((n) => state.get(n) && this.row(state.get(n)).catch(() => state.set({ [n]: null }))));
      const chip = state.get("chip");
      const row = this.rows[chip];
      for (const line of this.table.querySelectorAll("tr[data-chip]")) line.classList.toggle("chosen", line.dataset.chip === chip);
      if (this.data) this.scatter.show(this.data, this.picked());
      if (!row) {
        this.chosen.replaceChildren(h("p", { class: "muted" }, "Click a point or a row to see a design."));
        return;
      }
      const tag = (letter) => (state.get(letter) === chip ? h("span", { class: `tag ${letter}` }, letter.toUpperCase()) : null);
      this.chosen.replaceChildren(
        h("div", { class: "row end" }, h("h2", {}, `Design ${chip} `, tag("a"), tag("b")),
          h("span", { class: "row" },
            h("button", { type: "button", id: "set-a", onclick: () => state.set({ a: chip }) }, "Set as A"),
            h("button", { type: "button", id: "set-b", onclick: () => state.set({ b: chip }) }, "Set as B"),
            h("button", { type: "button", id: "to-compare", disabled: !(state.get("a") && state.get("b")), onclick: () => state.set({ view: "compare" }, true) }, "Compare A and B"),
            h("button", { type: "button", id: "to-whatif", onclick: () => state.set({ view: "whatif" }, true) }, "What if"))),
        h("p", {}, describe(row)),
        figures(["score", "area_mm2", "power_W", "energy_per_token_J", "step_time_s"].map((n) => [COLUMNS[n].label, shown(n, row[n]), COLUMNS[n].unit])),
        h("p", { class: "muted" }, row.plans.map((p) => `${p.model}: ${withUnit("samples_per_s", p.samples_per_s)}, microbatch ${p.microbatch}, tensor ${p.tensor} × pipeline ${p.pipeline} × data ${p.data}`).join("; ")));
    });
  }

  pick(chip) {
    state.set({ chip });
    say(`Design ${chip} chosen`);
  }

  brush(xs, ys) {
    const { x, y } = this.data;
    state.set({ [x]: state.rangeText(...xs), ...(y === x ? {} : { [y]: state.rangeText(...ys) }), offset: null });
  }

  clear() {
    state.set({ ...Object.fromEntries(state.filters().map(([name]) => [name, null])), offset: null });
  }

  png() {
    this.scatter.canvas.toBlob((blob) => download(blob, `${this.run}-${this.data?.y}-${this.data?.x}.png`));
  }
}
