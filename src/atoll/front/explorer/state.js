// What is looked at lives in the address, so that an address is the whole view.

import { COLUMNS } from "../base/columns.js";

const known = new URLSearchParams(location.search);
known.delete("token"); // kept by a cookie; it should not travel with a link
const watchers = [];

export const get = (name, otherwise = "") => known.get(name) ?? otherwise;

/** Sets or, with null, removes values; `push` makes it a step that the back button returns from. */
export function set(values, push = false) {
  let changed = false;
  for (const [name, value] of Object.entries(values)) {
    const text = value === null || value === undefined ? null : String(value);
    if ((known.get(name) ?? null) === text) continue;
    changed = true;
    if (text === null) known.delete(name);
    else known.set(name, text);
  }
  if (!changed) return;
  write(push);
  for (const watch of watchers) watch(Object.keys(values));
}

export const watch = (work) => watchers.push(work);

/** The address without anything that belongs to another run. */
export function forget(names) {
  for (const name of names) known.delete(name);
}

/** Columns that can be filtered by; `chip` in the address is the chosen design. */
export const isFilter = (name) => name in COLUMNS && name !== "chip";
export const filters = () => [...known].filter(([name]) => isFilter(name));
export const filterQuery = () => new URLSearchParams(filters());

export function range(name) {
  const text = known.get(name);
  if (text === null) return null;
  const [low, high] = text.includes("..") ? text.split("..") : [text, text];
  return [low === "" ? -Infinity : Number(low), high === "" ? Infinity : Number(high)];
}

export function rangeText(low, high) {
  const one = (value) => (Number.isFinite(value) ? String(value) : "");
  if (low === high) return one(low);
  return Number.isFinite(low) || Number.isFinite(high) ? `${one(low)}..${one(high)}` : null;
}

function write(push) {
  const text = known.toString();
  history[push ? "pushState" : "replaceState"](null, "", text ? `?${text}` : location.pathname);
}

write(false);
addEventListener("popstate", () => {
  const now = new URLSearchParams(location.search);
  const names = new Set([...known.keys(), ...now.keys()]);
  for (const name of [...known.keys()]) known.delete(name);
  for (const [name, value] of now) known.set(name, value);
  for (const watcher of watchers) watcher([...names]);
});
