// One layer's operators over time: on the cores of a chip, or one after the other on a device.

const LIMITS = {tensor: 0, vector: 1, hbm: 2, glb: 3, link: 5, matrix: 0, attention: 4};

function limitColour(name) { return PALETTE[name in LIMITS ? LIMITS[name] : 7]; }

// Which cores an operator takes: the lowest that are free, as ranges [first, count].
function coreRanges(operators, total, wanted) {
  const until = new Float64Array(total);
  const found = new Map();
  const order = operators.map((_, i) => i).filter((i) => wanted(operators[i]) > 0).sort((a, b) => operators[a][2] - operators[b][2]);
  for (const i of order) {
    const [, , start, length] = operators[i];
    let left = wanted(operators[i]);
    const ranges = [];
    for (let core = 0; core < total && left > 0; core++) {
      if (until[core] > start * (1 + 1e-9) + 1e-15) continue;
      until[core] = start + length;
      left--;
      const last = ranges[ranges.length - 1];
      if (last && last[0] + last[1] === core) last[1]++; else ranges.push([core, 1]);
    }
    found.set(i, ranges);
  }
  return found;
}

function bandsOf(entry, cores) {
  const operators = entry.operators;
  const bands = [];
  if (!cores) {
    for (const lane of ['matrix', 'attention', 'vector', 'link']) {
      const own = new Map();
      operators.forEach((op, i) => { if (op[1] === lane) own.set(i, [[0, 1]]); });
      if (own.size) bands.push({name: lane === 'link' ? 'collectives' : lane + ' kernels', total: 1, height: 30, ranges: own});
    }
    return bands;
  }
  const add = (name, total, height, wanted) => {
    if (operators.some((op) => wanted(op) > 0)) bands.push({name: name, total: total, height: height, ranges: coreRanges(operators, total, wanted)});
  };
  add(cores.tensor + ' tensor cores', cores.tensor, 130, (op) => op[4]);
  add(cores.vector + ' vector cores', cores.vector, 90, (op) => op[5]);
  add('network port', 1, 26, (op) => op[1] === 'link' ? 1 : 0);
  add('memory alone', 1, 26, (op) => op[4] + op[5] === 0 && op[1] !== 'link' ? 1 : 0);
  return bands;
}

function scheduleView(data) {
  const cores = data.models[0].cores;
  const node = section('schedule', cores ? 'A layer’s schedule on the cores' : 'A layer, operator by operator', cores
    ? 'Each block is one operator: its width is time, its height the cores that it holds. Colour says what limits it.'
    : 'One device runs them one after the other. Collectives are shown alone, before any overlap with products.');
  const entries = [];
  for (const model of data.models) for (const entry of model.layers) entries.push([model, entry]);
  const controls = el(node, 'div', {class: 'controls'});
  const input = chooser(controls, 'layer', 'schedule-layer', entries.map(([model, e], i) => [i,
    (data.models.length > 1 ? model.model + ': ' : '') + e.layer + (e.repeat > 1 ? ' (×' + e.repeat + ')' : '') + ', ' + e.pass]));
  const about = el(node, 'p', {class: 'note', id: 'schedule-about'});
  const plot = el(node, 'div', {class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'Schedule'});
  const keys = el(node, 'div');
  const block = entries.findIndex(([, e]) => e.repeat > 1);
  input.value = Math.max(0, block);

  function paint() {
    const [model, entry] = entries[+input.value];
    plot.textContent = ''; keys.textContent = '';
    about.textContent = 'Takes ' + seconds(entry.makespan_s)
      + (entry.gap == null ? '' : '; proven within ' + percent(entry.gap, 2) + ' (bound: ' + entry.bound + ')') + '.';
    const bands = bandsOf(entry, model.cores);
    const width = Math.max(620, plot.clientWidth), left = 118, right = width - 14;
    const height = bands.reduce((sum, b) => sum + b.height + 10, 0) + 40;
    const picture = draw(plot, 'svg', {width: width, height: height, id: 'schedule-picture', role: 'img', 'aria-label': entry.layer + ' ' + entry.pass});
    const fx = (v) => left + (right - left) * v / entry.makespan_s;
    let y = 4;
    const used = new Set();
    for (const band of bands) {
      draw(picture, 'rect', {x: left, y: y, width: right - left, height: band.height, fill: tone('--idle')});
      const words = band.name.split(' ');
      words.forEach((word, k) => draw(picture, 'text', {x: left - 8, 'text-anchor': 'end', y: y + band.height / 2 + 4 + 14 * (k - (words.length - 1) / 2), class: 'soft'}, word));
      for (const [i, ranges] of band.ranges) {
        const [name, core, start, length, tc, vc, limit] = entry.operators[i];
        const kind = limit || core;
        used.add(kind);
        const text = name + '\n' + seconds(length) + ' from ' + seconds(start) + (limit ? '\nlimited by ' + limit : '')
          + (tc ? '\n' + tc + ' tensor cores' : '') + (vc ? '\n' + vc + ' vector cores' : '');
        let tall = 0, at = 0;
        for (const [first, many] of ranges) {
          const h = band.height * many / band.total, top = y + band.height * first / band.total;
          tipped(draw(picture, 'rect', {class: 'op', x: fx(start), y: top, width: Math.max(1, fx(length) - fx(0)), height: Math.max(1, h),
            fill: limitColour(kind), stroke: tone('--card'), 'stroke-width': h > 4 ? 1 : 0}), text);
          if (h > tall) { tall = h; at = top + h / 2; }
        }
        const room = fx(length) - fx(0) - 8;
        if (tall >= 14 && room > name.length * 6.6) {
          draw(picture, 'text', {x: fx(start) + 5, y: at + 4, style: 'fill:#fff;pointer-events:none;paint-order:stroke;stroke:#0008;stroke-width:2px'}, name);
        }
      }
      y += band.height + 10;
    }
    for (const v of steps(0, entry.makespan_s, 8)) {
      draw(picture, 'path', {d: 'M' + fx(v) + ' ' + (y - 6) + 'v5', stroke: tone('--mid')});
      if (fx(v) < right - 20) draw(picture, 'text', {x: fx(v), y: y + 14, 'text-anchor': 'middle', class: 'soft'}, seconds(v));
    }
    const order = Object.keys(LIMITS).filter((name) => used.has(name));
    legend(keys, order.map((name) => [limitColour(name), cores ? 'limited by ' + name : name === 'link' ? 'collectives' : name + ' kernels']));
  }
  input.addEventListener('input', paint);
  redrawn(paint);
}
