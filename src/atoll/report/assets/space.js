// Every chip of the space: throughput against area, power or energy; filters, front, one in detail.

const FIGURES = {
  area_mm2: ['area', 'mm²'], peak_power_W: ['power at peak', 'W'], power_W: ['power, running', 'W'],
  energy_per_token_J: ['energy a token', 'J'],
};
const STATES = ['ruled out by roofline', 'ruled out by schedule', 'evaluated, cannot beat the best', 'evaluated, with its plan'];
const PLACED = 2, EVALUATED = 3;
const plainly = (parameter, value) => digits(value / parameter.per, 4) + (parameter.unit ? ' ' + parameter.unit : '');

function unpacked(text, kind) {
  const raw = atob(text);
  const buffer = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) buffer[i] = raw.charCodeAt(i);
  return new kind(buffer.buffer);
}

function unpackSpace(packed) {
  const columns = {};
  for (const name in packed.parameters) {
    const column = packed.parameters[name];
    const places = unpacked(column.places, column.wide ? Uint16Array : Uint8Array);
    columns[name] = {values: column.values, places: places, none: column.wide ? 65535 : 255};
  }
  const figures = {};
  for (const name in packed.figures) figures[name] = unpacked(packed.figures[name], Float32Array);
  return {count: packed.count, total: packed.total, columns: columns, figures: figures,
    score: unpacked(packed.score, Float32Array), state: unpacked(packed.state, Uint8Array)};
}

function valueOf(space, name, i) {
  const column = space.columns[name];
  const place = column.places[i];
  return place === column.none ? null : column.values[place];
}

// Of evaluated points, those that no other beats in both score and cost; the fastest first.
function frontOf(space, cost, chosen) {
  const order = chosen.filter((i) => space.state[i] === EVALUATED && cost[i] === cost[i])
    .sort((a, b) => space.score[b] - space.score[a] || cost[a] - cost[b]);
  const front = [];
  let least = Infinity;
  for (const i of order) if (cost[i] < least) { least = cost[i]; front.push(i); }
  return front;
}

function spaceView(data) {
  const space = unpackSpace(data.space);
  const node = section('space', 'All chips: what they reach, or cannot exceed',
    'Each point is one chip. Designs with a plan stand at their throughput; all others at the bound that no plan of '
    + 'theirs exceeds. Click a point, or use the arrow keys in the plot to walk along the front.');
  if (data.space.note) el(node, 'p', {class: 'note'}, data.space.note);
  const controls = el(node, 'div', {class: 'controls'});
  const axis = chooser(controls, 'against', 'space-axis',
    Object.keys(space.figures).map((name) => [name, FIGURES[name][0]]));
  const logged = ticked(controls, 'logarithmic', 'space-log', false);
  const shown = STATES.map((name, k) => {
    let any = false;
    for (let i = 0; i < space.count && !any; i++) any = space.state[i] === k;
    return any ? ticked(controls, name, 'space-state-' + k, true) : null;
  });
  const filters = data.space.shown.map((p) => [p.name, chooser(controls, p.label.toLowerCase(), 'space-' + p.name,
    [['', 'any'], ...space.columns[p.name].values.map((v) => [v, plainly(p, v)])])]);
  const limit = el(el(controls, 'label', {}, 'area at most '), 'input',
    {type: 'number', id: 'space-area', min: 0, step: 10, placeholder: 'mm²', style: 'width:6.5em'});
  const count = el(node, 'p', {id: 'space-count', class: 'note', 'aria-live': 'polite'});
  const pair = el(node, 'div', {class: 'pair'});
  const plot = el(pair, 'div', {class: 'plot'});
  const canvas = el(plot, 'canvas', {id: 'space-plot', tabindex: 0, role: 'img',
    'aria-label': 'Throughput of all chips; arrow keys walk along the front'});
  const detail = el(pair, 'div', {class: 'detail', id: 'space-detail', 'aria-live': 'polite'});
  const view = {chosen: [], front: [], picked: -1, at: null};
  const colours = (shade) => [shade('--faint'), shade('--mid'), PALETTE[3], PALETTE[0]];

  function refilter() {
    const most = parseFloat(limit.value);
    view.chosen = [];
    const cost = space.figures[axis.value];
    const tests = filters.filter(([, input]) => input.value !== '')
      .map(([name, input]) => [name, parseFloat(input.value)]);
    const counts = [0, 0, 0, 0];
    let drawn = 0;
    for (let i = 0; i < space.count; i++) {
      if (shown[space.state[i]] && !shown[space.state[i]].checked) continue;
      if (most === most && space.figures.area_mm2[i] > most) continue;
      if (!tests.every(([name, value]) => valueOf(space, name, i) === value)) continue;
      counts[space.state[i]]++;
      if (cost[i] === cost[i]) { view.chosen.push(i); drawn++; }
    }
    view.front = frontOf(space, cost, view.chosen);
    const all = counts.reduce((a, b) => a + b, 0);
    count.textContent = whole(all) + ' of ' + whole(space.total) + ' chips: ' + whole(counts[PLACED] + counts[EVALUATED]) + ' evaluated ('
      + whole(counts[EVALUATED]) + ' with a plan on record), ' + whole(counts[0] + counts[1]) + ' ruled out'
      + (drawn < all ? '; ' + whole(all - drawn) + ' have no figure on this axis' : '') + '.';
    paint();
  }

  function paint() {
    const width = Math.max(280, plot.clientWidth), height = Math.min(460, Math.max(320, width * 0.6));
    const pen = sharpCanvas(canvas, width, height);
    const cost = space.figures[axis.value];
    const box = {left: 58, right: width - 14, top: 14, bottom: height - 44};
    let high = 0, low = Infinity, wide = 0, near = Infinity;
    for (const i of view.chosen) {
      const y = space.score[i], x = cost[i];
      if (y > high) high = y;
      if (y > 0 && y < low) low = y;
      if (x > wide) wide = x;
      if (x > 0 && x < near) near = x;
    }
    for (const b of data.baselines) if (b.score > high) high = b.score;
    if (!view.chosen.length) { pen.fillStyle = css('--soft'); pen.fillText('No chip passes the filters.', 70, 60); return; }
    const log = logged.checked;
    if (log) {
      // A margin on either side, in proportion to what is shown.
      const tall = Math.max(1.02, Math.pow(high / low, 0.06)), broad = Math.max(1.02, Math.pow(wide / near, 0.04));
      high *= tall; low /= tall; wide *= broad; near /= broad;
    } else { high *= 1.05; wide *= 1.03; }
    const fx = log ? (v) => box.left + (box.right - box.left) * Math.log(v / near) / Math.log(wide / near)
      : (v) => box.left + (box.right - box.left) * v / wide;
    const fy = log ? (v) => box.bottom - (box.bottom - box.top) * Math.log(Math.max(v, low) / low) / Math.log(high / low)
      : (v) => box.bottom - (box.bottom - box.top) * v / high;
    view.at = (i) => [fx(cost[i]), fy(space.score[i])];
    pen.strokeStyle = css('--line'); pen.fillStyle = css('--soft'); pen.lineWidth = 1;
    pen.textAlign = 'right'; pen.textBaseline = 'middle';
    for (const v of log ? powers(low, high, height / 60) : steps(0, high, height / 60)) {
      pen.beginPath(); pen.moveTo(box.left, fy(v)); pen.lineTo(box.right, fy(v)); pen.stroke();
      pen.fillText(digits(v, 3), box.left - 6, fy(v));
    }
    pen.textAlign = 'center'; pen.textBaseline = 'top';
    for (const v of log ? powers(near, wide, width / 90) : steps(0, wide, width / 90)) pen.fillText(digits(v, 3), fx(v), box.bottom + 6);
    const [what, unit] = FIGURES[axis.value];
    pen.fillText(what + ' (' + unit + ')', (box.left + box.right) / 2, box.bottom + 24);
    pen.textAlign = 'left'; pen.fillText(data.unit, 4, 0);
    const tint = colours(css), grow = view.chosen.length < 300 ? 2.2 : view.chosen.length < 3000 ? 1.5 : 1;
    for (let k = 0; k < STATES.length; k++) {
      pen.fillStyle = tint[k];
      const size = grow * (k === EVALUATED ? 3.4 : 1.8);
      for (const i of view.chosen) {
        if (space.state[i] !== k) continue;
        pen.fillRect(fx(cost[i]) - size / 2, fy(space.score[i]) - size / 2, size, size);
      }
    }
    pen.strokeStyle = PALETTE[1]; pen.lineWidth = 2; pen.beginPath();
    let before = null;
    for (const i of view.front) {
      const [x, y] = view.at(i);
      if (before === null) pen.moveTo(x, y); else { pen.lineTo(before, y); pen.lineTo(x, y); }
      before = x;
    }
    pen.stroke();
    baselineMarks(pen, box, fx, fy, low);
    if (view.picked >= 0 && cost[view.picked] === cost[view.picked]) {
      const [x, y] = view.at(view.picked);
      pen.strokeStyle = css('--focus'); pen.lineWidth = 3;
      pen.beginPath(); pen.arc(x, y, 7, 0, 7); pen.stroke();
    }
  }

  function baselineMarks(pen, box, fx, fy, low) {
    let last = -99;
    // Fast chips use little energy a token: the free corner is on the other side there.
    const right = axis.value === 'energy_per_token_J', edge = right ? box.right - 6 : box.left + 6;
    pen.textBaseline = 'bottom'; pen.textAlign = right ? 'right' : 'left';
    const rows = data.baselines.filter((b) => b.score).sort((a, b) => b.score - a.score);
    for (const b of rows) {
      const y = fy(Math.max(b.score, low));
      pen.strokeStyle = PALETTE[5]; pen.lineWidth = 1; pen.setLineDash([5, 4]);
      pen.beginPath(); pen.moveTo(box.left, y); pen.lineTo(box.right, y); pen.stroke(); pen.setLineDash([]);
      if (b.area_mm2 && axis.value === 'area_mm2') {
        const x = fx(b.area_mm2);
        pen.fillStyle = PALETTE[5]; pen.beginPath();
        pen.moveTo(x, y - 6); pen.lineTo(x + 6, y + 5); pen.lineTo(x - 6, y + 5); pen.fill();
      }
      if (y - last > 13) { label(pen, b.name, edge, y - 2); last = y; } else { label(pen, b.name, edge, y + 15); last = y + 16; }
    }
  }

  function label(pen, text, x, y) {
    const size = pen.measureText(text).width;
    pen.fillStyle = css('--card'); pen.globalAlpha = 0.8; pen.fillRect(pen.textAlign === 'right' ? x - size - 2 : x - 2, y - 13, size + 4, 14); pen.globalAlpha = 1;
    pen.fillStyle = css('--ink'); pen.fillText(text, x, y);
  }

  function nearest(event) {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    let best = -1, least = 24 * 24;
    if (view.at) for (const i of view.chosen) {
      const [px, py] = view.at(i);
      let away = (px - x) * (px - x) + (py - y) * (py - y);
      if (space.state[i] === EVALUATED) away *= 0.5;  // evaluated designs lie on top
      if (away < least) { least = away; best = i; }
    }
    return best;
  }

  function words(i) {
    return data.space.shown.map((p) => p.label.toLowerCase() + ' ' + plainly(p, valueOf(space, p.name, i))).join(', ');
  }

  function pick(i) {
    view.picked = i;
    detail.textContent = '';
    if (i < 0) { el(detail, 'p', {class: 'soft'}, 'No point chosen.'); paint(); return; }
    const found = space.state[i] === EVALUATED;
    el(detail, 'h3', {style: 'margin-top:0'}, words(i));
    const table = el(detail, 'table');
    const row = (name, value) => { const r = el(table, 'tr'); el(r, 'td', {class: 'soft'}, name); el(r, 'td', {class: 'n'}, value); };
    row('state', STATES[space.state[i]]);
    row(found ? data.unit : data.unit + ', at most', digits(space.score[i], 6));
    row('of the best', percent(space.score[i] / data.score, 2));
    for (const name in space.figures) {
      const value = space.figures[name][i];
      if (value === value) row(FIGURES[name][0], name === 'energy_per_token_J' ? joules(value) : digits(value, 4) + ' ' + FIGURES[name][1]);
    }
    if (found) {
      row('HBM, at most', bytes(valueOf(space, 'hbm_capacity_bytes', i)));
      row('layout', 'p' + valueOf(space, 'pipeline', i) + ' t' + valueOf(space, 'tensor', i) + ' d' + valueOf(space, 'data', i));
      row('microbatch', valueOf(space, 'microbatch', i));
    }
    if (view.front.includes(i)) el(detail, 'p', {class: 'note'}, 'On the front: no evaluated chip is faster for less.');
    paint();
  }

  canvas.addEventListener('click', (event) => pick(nearest(event)));
  canvas.addEventListener('pointermove', (event) => {
    const i = nearest(event);
    tip(i < 0 ? '' : words(i) + '\n' + digits(space.score[i], 5) + ' ' + data.unit + (space.state[i] === EVALUATED ? '' : ' at most'), event.clientX, event.clientY);
  });
  canvas.addEventListener('pointerleave', () => tip(''));
  canvas.addEventListener('keydown', (event) => {
    const at = view.front.indexOf(view.picked), last = view.front.length - 1;
    const go = {ArrowLeft: Math.min(last, at + 1), ArrowRight: Math.max(0, at - 1), Home: last, End: 0}[event.key];
    if (go === undefined || last < 0) return;
    event.preventDefault();
    pick(view.front[go]);
  });
  for (const input of [axis, logged, limit, ...shown.filter(Boolean), ...filters.map((f) => f[1])]) input.addEventListener('input', refilter);
  const proven = data.pareto[axis.value];
  const tint = colours(tone);
  const keys = STATES.map((name, k) => [tint[k], name]).filter((_, k) => shown[k]);
  legend(node, [...keys, [PALETTE[1], 'front of evaluated designs' + (proven ? ', proven within ' + percent(proven, 0) + ' against area' : '')],
    ...(data.baselines.some((b) => b.score) ? [[PALETTE[5], 'baselines (▲ where the chip is known)']] : [])]);
  REDRAWN.push(paint);
  refilter();
  // The answer at first: of equals within the tolerance it need not be the fastest.
  const answer = view.chosen.find((i) => space.state[i] === EVALUATED && Math.abs(space.score[i] / data.score - 1) < 1e-6);
  pick(answer !== undefined ? answer : view.front.length ? view.front[0] : -1);
}

function chooser(parent, label, id, options) {
  const input = el(el(parent, 'label', {}, label + ' '), 'select', {id: id});
  for (const [value, text] of options) el(input, 'option', {value: value}, text);
  return input;
}

function ticked(parent, label, id, on) {
  const holder = el(parent, 'label');
  const input = el(holder, 'input', {type: 'checkbox', id: id});
  input.checked = on;
  el(holder, 'span', {}, label);
  return input;
}
