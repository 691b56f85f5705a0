// A layout on the machine: every device in its node, coloured by its place on one axis; its launch files.

import { nth, tone } from "../base/colours.js";
import { choice, download, h, legend, redrawn, s, section, table } from "../base/dom.js";
import { number, rate, seconds } from "../base/units.js";

const AXES = { tp: "tensor", cp: "context", dp: "data", pp: "pipeline" };
const MOST_DEVICES = 2048, MOST_NAMED = 8;

/** A colour for a rank: of the palette, or of a ramp where there are many. */
function shade(rank, many) {
  if (many <= 8) return nth(rank);
  const odd = rank % 2;
  return `hsl(${Math.round(205 - (170 * rank) / (many - 1))} ${odd ? 75 : 60}% ${odd ? 62 : 42}%)`;
}

export function clusterView({ cluster }) {
  const { order, levels, devices } = cluster;
  const used = order.filter(([, size]) => size > 1);
  const axis = choice("layout-axis", (used.length ? used : order.slice(0, 1)).map(([name, size]) => [name, `${AXES[name]} (${size})`]),
    used.some(([name]) => name === "pp") ? "pp" : undefined);
  const plot = h("div", {}), keys = h("div");
  const size = levels[0].devices, shown = Math.min(devices, MOST_DEVICES), nodes = Math.ceil(shown / size);

  function place(rank) {
    const found = {};
    for (const [name, many] of order) { found[name] = rank % many; rank = Math.floor(rank / many); }
    return found;
  }

  function paint() {
    const name = axis.value, many = order.find(([a]) => a === name)[1];
    const width = Math.max(260, plot.clientWidth);
    const inner = size <= 8 ? Math.min(size, 4) : Math.ceil(Math.sqrt(size)), deep = Math.ceil(Math.min(size, shown) / inner);
    const cell = nodes > 64 ? 9 : nodes > 16 ? 12 : 18, frame = inner * cell + 7, tall = deep * cell + 7;
    const columns = Math.max(1, Math.floor(width / frame)), rows = Math.ceil(nodes / columns);
    const shapes = [];
    for (let node = 0; node < nodes; node++) {
      const x = (node % columns) * frame + 1, y = Math.floor(node / columns) * tall + 1;
      shapes.push(s("rect", { x, y, width: frame - 3, height: tall - 3, rx: 3, fill: "none", stroke: tone("line") }));
      for (let d = 0; d < size && node * size + d < shown; d++) {
        const rank = node * size + d, where = place(rank);
        shapes.push(s("rect", {
          class: "device", x: x + 2 + (d % inner) * cell, y: y + 2 + Math.floor(d / inner) * cell,
          width: cell - 1.5, height: cell - 1.5, rx: 1, fill: shade(where[name], many),
          tip: `device ${rank} (node ${node})\n${order.map(([a, n]) => `${AXES[a]} ${where[a]} of ${n}`).join("\n")}`,
        }));
      }
    }
    plot.replaceChildren(s("svg", { width, height: rows * tall + 2, role: "img", id: "layout-picture",
      "aria-label": `Devices coloured by their ${AXES[name]} rank` }, shapes));
    const named = many > MOST_NAMED ? [0, 1, many - 1] : [...Array(many).keys()];
    keys.replaceChildren(legend(named.map((rank) => [shade(rank, many), `${AXES[name]} ${rank}`])));
    if (shown < devices) keys.append(h("p", { class: "muted" }, `The first ${number(shown)} of ${number(devices)} devices.`));
  }
  axis.addEventListener("input", paint);
  redrawn(plot, paint);
  return section("layout", "The layout on the machine",
    "Every square is a device, every frame a node. Ranks fill a node first.",
    table(["level", "devices", "bandwidth per device", "latency"],
      levels.map((level) => [level.name, number(level.devices), rate(level.bandwidth_Bps), seconds(level.latency_s)]), { class: "fit" }),
    h("div", { class: "row controls" }, h("label", {}, "Colour by ", axis)), plot, keys);
}

const saved = (file) => download(new Blob([file.text], { type: "text/plain" }), file.file);

/** Saves the launch file of the answer's own tool; nothing where it has none. */
export function launchButton({ launch, tool }) {
  const file = launch.find(({ target, text }) => target === tool && text);
  return file && h("button", { type: "button", id: "launch-save", onclick: () => saved(file) }, `Download ${file.file} for ${tool}`);
}

export function launchView({ launch, tool: own }) {
  const good = Math.max(0, launch.indexOf(launch.find((file) => file.target === own && file.text) ?? launch.find((file) => file.text)));
  const tool = choice("launch-tool", launch.map((file, i) => [i, file.text ? file.target : `${file.target} (no file)`]), good);
  const said = h("span", { class: "muted", "aria-live": "polite" });
  const notes = h("ul", { class: "muted" }), text = h("pre", { id: "launch-text", tabindex: 0 });
  const refusal = h("p", { class: "warn", id: "launch-refusal" });
  const copy = h("button", { type: "button", id: "launch-copy", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      said.textContent = "copied";
    } catch { // pages from files have no clipboard in some browsers
      getSelection().selectAllChildren(text);
      said.textContent = document.execCommand("copy") ? "copied" : "selected: press Ctrl+C";
    }
  } }, "Copy");
  const save = h("button", { type: "button", id: "launch-download", onclick: () => saved(launch[Number(tool.value)]) }, "Download");
  function show() {
    const chosen = launch[Number(tool.value)];
    said.textContent = chosen.file;
    notes.replaceChildren(...chosen.notes.map((note) => h("li", {}, note)));
    text.textContent = chosen.text;
    refusal.textContent = chosen.refused;
    copy.disabled = save.disabled = text.hidden = !chosen.text;
  }
  tool.addEventListener("input", show);
  show();
  return section("launch", "The launch file", "The same layout as the launch file of a training tool.",
    h("div", { class: "row controls" }, h("label", {}, "Tool ", tool), copy, save, said), refusal, notes, text);
}
