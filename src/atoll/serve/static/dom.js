// Elements, colours of the theme, announcements.

export function h(tag, given = {}, ...children) {
  const element = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const probe = h("span", { class: "unseen", "aria-hidden": "true" });

/** A colour of the style sheet as the present theme has it, for canvases. */
export function ink(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

export function say(text) {
  document.getElementById("said").textContent = text;
}

/** A small note beside the pointer; null takes it away. */
let note = null;
export function hint(lines, x = 0, y = 0) {
  note?.remove();
  note = null;
  if (!lines) return;
  note = h("div", { class: "hint", "aria-hidden": "true" }, lines.map((line) => h("div", {}, line)));
  document.body.append(note);
  const box = note.getBoundingClientRect();
  note.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  note.style.top = `${y + box.height + 24 > innerHeight ? y - box.height - 10 : y + 14}px`;
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
