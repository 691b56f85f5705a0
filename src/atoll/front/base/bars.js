// Parts of a whole as stacked bars, with a key that names every part; values as bars from zero.

import { partColours } from "./colours.js";
import { h, legend, swatch, table } from "./dom.js";
import { percent } from "./units.js";

const MOST_IN_TABLE = 2; // of more bars the key has the shares of the first
const LEAST_SHARE = 5e-4;

/** Bars on one scale. `rows`: {name, about, parts: {part: value}, action: a button}; `limit`: what there is, marked by a line. */
export function stackedBars(rows, format, limit = 0) {
  const of = (row, name) => Math.max(0, row.parts[name] ?? 0);
  const sums = rows.map((row) => Object.keys(row.parts).reduce((sum, name) => sum + of(row, name), 0));
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.parts)))]
    .filter((name) => rows.some((row, i) => of(row, name) > LEAST_SHARE * sums[i]));
  const most = Math.max(limit, ...sums, 1e-300);
  const colour = partColours(names);
  const share = (i, name) => percent(sums[i] ? of(rows[i], name) / sums[i] : 0);
  const kind = (name) => (name.includes("bubble") ? "hatched" : "");
  const bar = (row, i) => [
    h("div", { class: "head" }, h("strong", {}, row.name), row.about ? h("span", { class: "muted" }, row.about) : null,
      h("span", { class: "sum" }, format(sums[i]), limit ? ` of ${format(limit)}` : "", row.action && [" ", row.action])),
    h("div", { class: "stacked", role: "img", "aria-label": `${row.name}: ${names.map((n) => `${n} ${format(of(row, n))}`).join(", ")}` },
      names.filter((name) => of(row, name)).map((name) => h("i", {
        class: `part ${kind(name)}`, "data-part": name, tip: `${name}: ${format(of(row, name))} (${share(i, name)})`,
        style: { width: `${(100 * of(row, name)) / most}%`, backgroundColor: colour.get(name) },
      })),
      limit ? h("i", { class: "limit", style: { left: `calc(${(100 * limit) / most}% - 2px)` } }) : null),
  ];
  const key = rows.length > MOST_IN_TABLE
    ? legend(names.map((name) => [colour.get(name), `${name} ${of(rows[0], name) ? share(0, name) : ""}`, kind(name)]))
    : table(["Part", ...rows.map((row) => row.name)], names.map((name) => [
      h("span", { class: "named" }, swatch(colour.get(name), kind(name)), name),
      ...rows.map((row, i) => [format(of(row, name)), " ", h("small", { class: "muted" }, share(i, name))]),
    ]), { class: "wrap fit" });
  return h("div", { class: "parts" }, rows.map(bar), key);
}

/** One value as a bar from zero, or from the middle where there are negative ones. */
export const plainBar = (share, colour) => h("div", { class: "track" },
  h("i", { style: { width: `${100 * Math.abs(share)}%`, background: colour } }));

export const sidedBar = (share) => h("div", { class: "track sided" },
  h("i", { style: { width: `${50 * Math.abs(share)}%`, left: `${50 + Math.min(0, 50 * share)}%`, background: share > 0 ? "var(--blue)" : "var(--vermilion)" } }));
