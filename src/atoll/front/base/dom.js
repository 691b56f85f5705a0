// Elements and what every view is built of: sections, tables, keys, choices, the tip.

export function h(tag, given = {}, ...children) {
  const element = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "tip") tipped(element, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An element of a drawing. */
export const s = (tag, given, ...children) => h(`svg:${tag}`, given, ...children);

export const section = (id, title, about, ...children) =>
  h("section", { class: "card", id, "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, title), about ? h("p", { class: "muted" }, about) : null, children);

/** A box that scrolls sideways, also with the keyboard, where its content is wider. */
export function scroller(label, ...children) {
  const box = h("div", { class: "scroll" }, children);
  new ResizeObserver(() => {
    const wide = box.scrollWidth > box.clientWidth;
    for (const [name, value] of Object.entries({ tabindex: 0, role: "group", "aria-label": label })) {
      if (wide) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
  }).observe(box);
  return box;
}

/** Rows of cells; the first column is words, which head their row, the others are figures. */
export const table = (heads, rows, given = {}) => scroller("Table, scrolls sideways", h("table", given,
  heads.length ? h("thead", {}, h("tr", {}, heads.map((text) => headCell(text, "col")))) : null,
  h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, i) => (i ? h("td", {}, cell) : headCell(cell, "row"))))))));
const headCell = (text, scope) => (text === "" ? h("td", {}) : h("th", { scope }, text));

/** An answer in short, as it is printed: [label, words]; warnings stand out. */
export const answerLines = (rows) => h("dl", { class: "lines" }, rows.map(([label, words]) =>
  h("div", { class: label === "Note" || /DOES NOT FIT|tight:/.test(words) ? "warn" : null },
    h("dt", {}, label), h("dd", { id: label === "Proof" ? "certificate" : null }, words))));

/** Named figures: [name, value, unit, a line below]. */
export const figures = (rows) =>
  h("dl", { class: "figures" }, rows.map(([name, value, unit, below]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, unit ? [" ", h("small", {}, unit)] : null, below ? h("small", { class: "below" }, below) : null))));

/** `colour` may be a gradient; a class may add a pattern. */
export const swatch = (colour, kind = "") =>
  h("i", { class: `swatch ${kind}`, style: { [colour.includes("gradient") ? "backgroundImage" : "backgroundColor"]: colour } });

/** What colours mean: [colour, words, form of the swatch]. */
export const legend = (entries) =>
  h("div", { class: "key" }, entries.map(([colour, words, kind]) => h("span", {}, swatch(colour, kind), words)));

export const choice = (id, options, chosen) =>
  h("select", { id }, options.map(([value, words]) => h("option", { value, selected: value === chosen }, words)));

/** A colour of the style sheet as the present theme has it, for canvases. */
const probe = h("span", { class: "unseen", "aria-hidden": "true" });
export function ink(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("theme")));

/** Draws as soon as the node has a width, and whenever that or the theme changes. */
export function redrawn(node, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (!node.clientWidth || node.clientWidth === width) return;
    width = node.clientWidth;
    draw();
  }).observe(node);
  addEventListener("theme", () => { if (width && node.isConnected) draw(); });
}

export function say(text) {
  const node = document.getElementById("said");
  if (node) node.textContent = text;
}

/** A small note beside the pointer; nothing takes it away. */
let note = null;
export function tip(text = "", x = 0, y = 0) {
  note?.remove();
  note = null;
  if (!text) return;
  note = h("div", { class: "tip", "aria-hidden": "true" }, text);
  document.body.append(note);
  const box = note.getBoundingClientRect();
  note.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  note.style.top = `${y + box.height + 24 > innerHeight ? y - box.height - 10 : y + 14}px`;
}

function tipped(node, text) {
  node.addEventListener("pointermove", (event) => tip(text, event.clientX, event.clientY));
  node.addEventListener("pointerleave", () => tip());
  if (node.namespaceURI.endsWith("svg")) node.append(h("svg:title", {}, text));
}

export function download(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Runs a function only after calls have stopped for a moment. */
export function settled(work, pause_ms) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), pause_ms);
  };
}
