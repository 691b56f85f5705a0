// A layout on the machine: every device in its node, coloured by its place on one axis.

const AXES = {tp: 'tensor', cp: 'context', dp: 'data', pp: 'pipeline'};
const MOST_DEVICES = 2048;

function clusterView(data) {
  const machine = data.cluster;
  const node = section('layout', 'The layout on the machine',
    'Ranks fill a node first: neighbours in the tensor group sit on its links. Every square is a device, every frame a node.');
  const levels = el(el(node, 'div', {class: 'scroll'}), 'table');
  const head = el(levels, 'tr');
  ['level', 'devices', 'bandwidth a device', 'latency'].forEach((t, i) => el(head, 'th', i ? {class: 'n'} : {}, t));
  for (const level of machine.levels) {
    const row = el(levels, 'tr');
    el(row, 'td', {}, level.name);
    el(row, 'td', {class: 'n'}, whole(level.devices));
    el(row, 'td', {class: 'n'}, rate(level.bandwidth_Bps));
    el(row, 'td', {class: 'n'}, seconds(level.latency_s));
  }
  const used = machine.order.filter(([, size]) => size > 1);
  const controls = el(node, 'div', {class: 'controls', style: 'margin-top:.7rem'});
  const input = chooser(controls, 'colour by', 'layout-axis', (used.length ? used : machine.order.slice(0, 1))
    .map(([axis, size]) => [axis, AXES[axis] + ' (' + size + ')']));
  const pp = machine.order.find(([axis]) => axis === 'pp');
  if (pp && pp[1] > 1) input.value = 'pp';
  const plot = el(node, 'div');
  const keys = el(node, 'div');
  const size = machine.levels[0].devices, shown = Math.min(machine.devices, MOST_DEVICES);

  function place(rank) {
    const found = {};
    for (const [axis, many] of machine.order) { found[axis] = rank % many; rank = Math.floor(rank / many); }
    return found;
  }

  function shade(k, many) {
    if (many <= 8) return PALETTE[k % 8];
    return 'hsl(' + Math.round(205 - 170 * k / (many - 1)) + ' ' + (k % 2 ? 75 : 60) + '% ' + (k % 2 ? 62 : 42) + '%)';
  }

  function paint() {
    plot.textContent = ''; keys.textContent = '';
    const axis = input.value, many = machine.order.find(([a]) => a === axis)[1];
    const width = Math.max(260, plot.clientWidth), nodes = Math.ceil(shown / size);
    const inner = size <= 8 ? Math.min(size, 4) : Math.ceil(Math.sqrt(size)), deep = Math.ceil(Math.min(size, shown) / inner);
    const cell = nodes > 64 ? 9 : nodes > 16 ? 12 : 18, frame = inner * cell + 7, tall = deep * cell + 7;
    const columns = Math.max(1, Math.floor(width / frame)), rows = Math.ceil(nodes / columns);
    const picture = draw(plot, 'svg', {width: width, height: rows * tall + 2, role: 'img', id: 'layout-picture',
      'aria-label': 'Devices coloured by their ' + AXES[axis] + ' rank'});
    for (let n = 0; n < nodes; n++) {
      const x = (n % columns) * frame + 1, y = Math.floor(n / columns) * tall + 1;
      draw(picture, 'rect', {x: x, y: y, width: frame - 3, height: tall - 3, rx: 3, fill: 'none', stroke: tone('--line')});
      for (let d = 0; d < size && n * size + d < shown; d++) {
        const rank = n * size + d, where = place(rank);
        tipped(draw(picture, 'rect', {class: 'device', x: x + 2 + (d % inner) * cell, y: y + 2 + Math.floor(d / inner) * cell,
          width: cell - 1.5, height: cell - 1.5, rx: 1, fill: shade(where[axis], many)}),
        'device ' + rank + ' (node ' + n + ')\n' + machine.order.map(([a, s]) => AXES[a] + ' ' + where[a] + ' of ' + s).join('\n'));
      }
    }
    const named = [];
    for (let k = 0; k < many && named.length < 16; k++) named.push([shade(k, many), AXES[axis] + ' ' + k]);
    if (many > 16) named.push(['transparent', 'and ' + (many - 16) + ' more']);
    legend(keys, named);
    if (shown < machine.devices) el(keys, 'p', {class: 'note'}, 'The first ' + whole(shown) + ' of ' + whole(machine.devices) + ' devices.');
  }
  input.addEventListener('input', paint);
  redrawn(paint);
}

function launchView(data) {
  const node = section('launch', 'The launch file', 'The same layout in the words of a training tool. Copy it, or let atoll plan --export write it.');
  const controls = el(node, 'div', {class: 'controls'});
  const input = chooser(controls, 'tool', 'launch-tool', data.launch.map((l, i) => [i, l.target]));
  const copy = el(controls, 'button', {type: 'button', id: 'launch-copy'}, 'copy');
  const said = el(controls, 'span', {class: 'soft', 'aria-live': 'polite'});
  const notes = el(node, 'ul', {class: 'plain note'});
  const text = el(node, 'pre', {id: 'launch-text', tabindex: 0});
  const good = data.launch.findIndex((l) => l.text);
  input.value = Math.max(0, good);
  function show() {
    const chosen = data.launch[+input.value];
    notes.textContent = ''; said.textContent = chosen.file || '';
    for (const note of chosen.notes || []) el(notes, 'li', {}, note);
    text.textContent = chosen.text || chosen.refused;
    copy.disabled = !chosen.text;
  }
  copy.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      said.textContent = 'copied';
    } catch {
      const range = document.createRange();
      range.selectNodeContents(text);
      getSelection().removeAllRanges(); getSelection().addRange(range);
      said.textContent = document.execCommand('copy') ? 'copied' : 'selected: press Ctrl+C';
    }
  });
  input.addEventListener('input', show);
  show();
}
