// The chip to scale: every core is drawn, the die's parts take the area that they take.

function grid(count, width, height) {
  let best = [1, count], badness = Infinity;
  for (let columns = 1; columns <= count; columns++) {
    const rows = Math.ceil(count / columns);
    const shape = Math.abs(Math.log((width / columns) / (height / rows))) + 8 * (rows * columns - count) / count;
    if (shape < badness) { badness = shape; best = [columns, rows]; }
  }
  return best;
}

function chipView(data) {
  const chip = data.chip;
  const node = section('chip', 'The chip, to scale', digits(chip.area_mm2, 4) + ' mm² on the die. The template fixes how much '
    + 'of each part there is, not where: the floor plan here is ours. HBM stacks stand beside the die and are not to scale.');
  const pair = el(node, 'div', {class: 'pair'});
  const area = chip.parts;
  const tensor = (area['tensor arrays'] || 0) + (area['tensor core buffers'] || 0);
  const vector = (area['vector lanes'] || 0) + (area['vector core buffers'] || 0);
  const shared = area['shared buffer (GLB)'] || 0, phy = area['HBM interfaces'] || 0;
  const side = Math.sqrt(chip.area_mm2), size = 420, k = size / side, off = 74;
  const picture = draw(el(pair, 'div'), 'svg', {viewBox: '0 0 ' + (size + off + 8) + ' ' + (size + 40), width: '100%',
    style: 'max-height:520px', role: 'img', id: 'chip-picture', 'aria-label': 'The die with its cores and buffers, to scale', class: 'large'});
  const tint = {'tensor arrays': PALETTE[0], 'tensor core buffers': PALETTE[4], 'vector lanes': PALETTE[1],
    'vector core buffers': PALETTE[6], 'shared buffer (GLB)': PALETTE[2], 'HBM interfaces': PALETTE[3]};
  const rect = (x, y, w, h, fill, text) => {
    const r = draw(picture, 'rect', {x: x, y: y, width: Math.max(0, w), height: Math.max(0, h), fill: fill});
    return text ? tipped(r, text) : r;
  };
  rect(off, 0, size, size, tone('--idle'), 'the die');
  const strip = phy / side * k;
  if (phy) rect(off, 0, strip, size, tint['HBM interfaces'], 'HBM interfaces: ' + digits(phy, 3) + ' mm²');
  const left = off + strip, width = size - strip;
  const glb = shared / (width / k) * k;
  rect(left, size - glb, width, glb, tint['shared buffer (GLB)'], 'shared buffer: ' + chip.glb_MiB + ' MiB, ' + digits(shared, 3) + ' mm²');
  const rest = size - glb;
  const vectorWidth = vector / (rest / k) * k;
  const block = (x, w, count, whole, array, words, arrayTint, bufferTint) => {
    const [columns, rows] = grid(count, w, rest);
    const cw = w / columns, ch = rest / rows, gap = Math.min(1.5, cw * 0.08, ch * 0.08);
    const share = whole ? array / whole : 1;
    for (let i = 0; i < count; i++) {
      const cx = x + (i % columns) * cw + gap / 2, cy = Math.floor(i / columns) * ch + gap / 2;
      rect(cx, cy, cw - gap, (ch - gap) * share, arrayTint, words);
      if (share < 1) rect(cx, cy + (ch - gap) * share, cw - gap, (ch - gap) * (1 - share), bufferTint, words);
    }
  };
  block(left, width - vectorWidth, chip.tensor_cores, tensor, area['tensor arrays'] || 0,
    'one of ' + chip.tensor_cores + ' tensor cores: ' + chip.width + '×' + chip.depth + ', ' + digits(tensor / chip.tensor_cores, 3) + ' mm²',
    tint['tensor arrays'], tint['tensor core buffers']);
  block(left + width - vectorWidth, vectorWidth, chip.vector_cores, vector, area['vector lanes'] || 0,
    'one of ' + chip.vector_cores + ' vector cores of ' + chip.vector_width + ' lanes, ' + digits(vector / chip.vector_cores, 3) + ' mm²',
    tint['vector lanes'], tint['vector core buffers']);
  const stacks = Math.max(1, Math.min(8, Math.round(chip.hbm_GiB / 16)));
  for (let i = 0; i < stacks; i++) {
    const h = size / stacks;
    draw(picture, 'rect', {x: 2, y: i * h + 3, width: off - 14, height: h - 6, rx: 3, fill: tone('--faint'), stroke: tone('--mid')});
  }
  const words = draw(picture, 'text', {x: off / 2 - 6, y: size / 2, 'text-anchor': 'middle', transform: 'rotate(-90 ' + (off / 2 - 6) + ' ' + size / 2 + ')'},
    'HBM ' + chip.hbm_GiB + ' GiB, ' + whole(chip.hbm_bandwidth_GBps) + ' GB/s');
  words.style.fontWeight = 600;
  const bar = steps(0, side, 4)[1] || side;
  draw(picture, 'path', {d: 'M' + off + ' ' + (size + 12) + 'v6h' + bar * k + 'v-6', fill: 'none', stroke: tone('--ink')});
  draw(picture, 'text', {x: off + bar * k + 8, y: size + 20}, digits(bar, 2) + ' mm');
  draw(picture, 'text', {x: size + off, y: size + 20, 'text-anchor': 'end', class: 'soft'}, digits(side, 3) + ' × ' + digits(side, 3) + ' mm');
  const table = el(el(pair, 'div'), 'table', {id: 'chip-parts'});
  const head = el(table, 'tr');
  el(head, 'th', {}, 'part'); el(head, 'th', {class: 'n'}, 'mm²'); el(head, 'th', {class: 'n'}, 'share');
  for (const name in area) {
    const row = el(table, 'tr'), cell = el(row, 'td');
    const key = el(cell, 'span', {class: 'key', style: 'display:inline-block;margin-right:6px'});
    key.style.background = tint[name];
    cell.append(name);
    el(row, 'td', {class: 'n'}, digits(area[name], 4));
    el(row, 'td', {class: 'n'}, percent(area[name] / chip.area_mm2));
  }
}
