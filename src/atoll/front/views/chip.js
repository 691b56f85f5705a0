// The chip to scale: every core is drawn, the die's parts take the area that they take.

import { tone } from "../base/colours.js";
import { h, s, section, swatch, table } from "../base/dom.js";
import { number, percent, ticks } from "../base/units.js";

const TINTS = {
  "tensor arrays": "blue", "tensor core buffers": "sky", "vector lanes": "orange",
  "vector core buffers": "yellow", "shared buffer (GLB)": "green", "HBM interfaces": "pink", buffers: "green", network: "sky",
  links: "violet", control: "slate",
};
const PLACED = new Set(["tensor arrays", "tensor core buffers", "vector lanes", "vector core buffers", "HBM interfaces"]);
const SIZE = 420, LEFT = 74; // the die; HBM stacks stand to its left

/** Columns and rows of about square cells. */
function grid(count, width, height) {
  let best = [1, count], badness = Infinity;
  for (let columns = 1; columns <= count; columns++) {
    const rows = Math.ceil(count / columns);
    const shape = Math.abs(Math.log(width / columns / (height / rows))) + (8 * (rows * columns - count)) / count;
    if (shape < badness) { badness = shape; best = [columns, rows]; }
  }
  return best;
}

export function chipView({ chip }) {
  const area = (name) => chip.parts[name] ?? 0, tint = (name) => tone(TINTS[name] ?? "grey");
  const tensor = area("tensor arrays") + area("tensor core buffers"), vector = area("vector lanes") + area("vector core buffers");
  const phy = area("HBM interfaces");
  const side = Math.sqrt(chip.area_mm2), scale = SIZE / side;
  const shapes = [];
  const rect = (x, y, width, height, fill, words) =>
    shapes.push(s("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), fill, tip: words }));

  rect(LEFT, 0, SIZE, SIZE, tone("idle"), "the die");
  const strip = (phy / side) * scale;
  if (phy) rect(LEFT, 0, strip, SIZE, tint("HBM interfaces"), `HBM interfaces: ${number(phy, 3)} mm²`);
  const left = LEFT + strip, width = SIZE - strip;
  let rest = SIZE; // what is no core has a strip below them, the largest at the bottom
  for (const [name, mm2] of Object.entries(chip.parts).filter(([name]) => !PLACED.has(name)).sort((a, b) => b[1] - a[1])) {
    const high = mm2 * scale * scale / width;
    rest -= high;
    rect(left, rest, width, Math.max(0, high - 1), tint(name), `${name}: ${number(mm2, 3)} mm²`);
  }
  const vectorWidth = (vector / (rest / scale)) * scale;
  const block = (x, wide, count, [whole, array], words, arrayTint, bufferTint) => {
    const [columns, rows] = grid(count, wide, rest);
    const cw = wide / columns, ch = rest / rows, gap = Math.min(1.5, cw * 0.08, ch * 0.08);
    const share = whole ? array / whole : 1;
    for (let i = 0; i < count; i++) {
      const cx = x + (i % columns) * cw + gap / 2, cy = Math.floor(i / columns) * ch + gap / 2;
      rect(cx, cy, cw - gap, (ch - gap) * share, arrayTint, words);
      if (share < 1) rect(cx, cy + (ch - gap) * share, cw - gap, (ch - gap) * (1 - share), bufferTint, words);
    }
  };
  block(left, width - vectorWidth, chip.tensor_cores, [tensor, area("tensor arrays")],
    `one of ${chip.tensor_cores} tensor cores: ${chip.width}×${chip.depth}, ${number(tensor / chip.tensor_cores, 3)} mm²`,
    tint("tensor arrays"), tint("tensor core buffers"));
  block(left + width - vectorWidth, vectorWidth, chip.vector_cores, [vector, area("vector lanes")],
    `one of ${chip.vector_cores} vector cores of ${chip.vector_width} lanes, ${number(vector / chip.vector_cores, 3)} mm²`,
    tint("vector lanes"), tint("vector core buffers"));
  const stacks = Math.max(1, Math.min(8, Math.round(chip.hbm_GiB / 16)));
  for (let i = 0; i < stacks; i++) {
    const height = SIZE / stacks;
    shapes.push(s("rect", { x: 2, y: i * height + 3, width: LEFT - 14, height: height - 6, rx: 3, fill: tone("faint"), stroke: tone("mid") }));
  }
  const at = LEFT / 2 - 6, bar = ticks(0, side, 4)[1] ?? side;
  shapes.push(
    s("text", { class: "strong", x: at, y: SIZE / 2, "text-anchor": "middle", transform: `rotate(-90 ${at} ${SIZE / 2})` },
      `HBM ${chip.hbm_GiB} GiB, ${number(chip.hbm_bandwidth_GBps)} GB/s`),
    s("path", { d: `M${LEFT} ${SIZE + 12}v6h${bar * scale}v-6`, fill: "none", stroke: tone("text") }),
    s("text", { x: LEFT + bar * scale + 8, y: SIZE + 20 }, `${number(bar, 2)} mm`),
    s("text", { class: "muted", x: SIZE + LEFT, y: SIZE + 20, "text-anchor": "end" }, `${number(side, 3)} × ${number(side, 3)} mm`));

  return section("chip", "The chip, to scale",
    `${number(chip.area_mm2)} mm² on the die. Areas are to scale, positions are illustrative; the HBM stacks are not to scale.`,
    h("div", { class: "pair" },
      s("svg", { class: "large", id: "chip-picture", viewBox: `0 0 ${SIZE + LEFT + 8} ${SIZE + 40}`, role: "img",
        "aria-label": "The die with its cores and buffers, to scale" }, shapes),
      table(["part", "mm²", "share"], Object.entries(chip.parts).map(([name, mm2]) => [
        h("span", { class: "named" }, swatch(tint(name)), name), number(mm2), percent(mm2 / chip.area_mm2),
      ]), { id: "chip-parts" })));
}
