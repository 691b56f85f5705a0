// The wafer: dies with their stage or memory, and the load of every link between them.

function waferView(data) {
  const wafer = data.wafer;
  const node = section('wafer', 'The wafer', 'Every square is a die. Lines between dies are links: the thicker, the more bytes a microbatch sends over them.');
  const controls = el(node, 'div', {class: 'controls'});
  const input = chooser(controls, 'colour by', 'wafer-colour', [['stage', 'stage'], ['memory', 'memory in use']]);
  const plot = el(node, 'div', {class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'Map of the wafer'}), keys = el(node, 'div');
  const most = Math.max(1, ...wafer.links.map((l) => l[4]));

  function paint() {
    plot.textContent = ''; keys.textContent = '';
    const cell = Math.max(34, Math.min(64, plot.clientWidth / wafer.columns)), pad = cell * 0.2;
    const picture = draw(plot, 'svg', {width: cell * wafer.columns, height: cell * wafer.rows, id: 'wafer-picture', role: 'img', 'aria-label': 'Map of dies'});
    const middle = (v) => v * cell + cell / 2;
    for (const [x1, y1, x2, y2, load] of wafer.links) {
      if (load <= 0) continue;
      // Both directions of a link lie side by side.
      const ox = y1 === y2 ? 0 : (y2 > y1 ? -3 : 3), oy = x1 === x2 ? 0 : (x2 > x1 ? 3 : -3);
      tipped(draw(picture, 'line', {class: 'link', x1: middle(x1) + ox, y1: middle(y1) + oy, x2: middle(x2) + ox, y2: middle(y2) + oy,
        stroke: PALETTE[5], 'stroke-width': 0.8 + 4.2 * load / most, opacity: 0.35 + 0.65 * load / most}),
      'link (' + x1 + ', ' + y1 + ') to (' + x2 + ', ' + y2 + ')\n' + bytes(load) + ' a microbatch, ' + percent(load / most, 0) + ' of the busiest');
    }
    for (const [[x1, y1], [x2, y2]] of wafer.dead_links) {
      draw(picture, 'line', {x1: middle(x1), y1: middle(y1), x2: middle(x2), y2: middle(y2), stroke: tone('--ink'), 'stroke-width': 2, 'stroke-dasharray': '2 3'});
    }
    for (const [x, y, stage, dead, memory] of wafer.dies) {
      const idle = stage === null;
      let fill = tone('--idle');
      if (!idle) fill = input.value === 'stage' ? PALETTE[stage % PALETTE.length] : 'hsl(210 70% ' + (88 - 55 * Math.min(1, memory / wafer.capacity_bytes)) + '%)';
      tipped(draw(picture, 'rect', {class: 'die', x: x * cell + pad, y: y * cell + pad, width: cell - 2 * pad, height: cell - 2 * pad, rx: 3,
        fill: dead ? 'none' : fill, stroke: dead ? tone('--ink') : tone('--mid'), 'stroke-dasharray': dead ? '3 3' : 'none'}),
      'die (' + x + ', ' + y + ')\n' + (dead ? 'dead' : idle ? 'spare' : 'stage ' + stage + ' (' + wafer.stages[stage].layers + ' layers)\n'
        + bytes(memory) + ' of ' + bytes(wafer.capacity_bytes)));
      const words = dead ? '×' : idle ? '' : input.value === 'stage' ? stage : percent(memory / wafer.capacity_bytes, 0);
      const dark = input.value === 'stage' || memory / wafer.capacity_bytes > 0.5;
      draw(picture, 'text', {x: middle(x), y: middle(y) + 4, 'text-anchor': 'middle',
        style: 'pointer-events:none;' + (dead ? '' : 'fill:' + (dark ? '#fff' : '#111') + (dark ? ';paint-order:stroke;stroke:#0006;stroke-width:2px' : ''))}, words);
    }
    if (input.value === 'stage') legend(keys, wafer.stages.map((s, i) => [PALETTE[i % PALETTE.length], 'stage ' + i + ': ' + s.layers + ' layers, ' + seconds(s.load_s)]));
    else legend(keys, [['hsl(210 70% 88%)', 'empty'], ['hsl(210 70% 33%)', 'full: ' + bytes(wafer.capacity_bytes)]]);
    const more = [[PALETTE[5], 'link, up to ' + bytes(most) + ' a microbatch'], [tone('--idle'), 'spare die']];
    if (wafer.dies.some((d) => d[3])) more.push(['transparent', 'dead die', tone('--ink')]);
    if (wafer.dead_links.length) more.push(['repeating-linear-gradient(0deg, var(--ink) 0 2px, transparent 2px 5px)', 'dead link']);
    legend(keys, more);
  }
  input.addEventListener('input', paint);
  redrawn(paint);
}
