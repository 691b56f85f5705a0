// Stacked bars of parts: where the time goes, what memory holds, energy; and gains of neighbours.

function stack(parent, rows, format, options) {
  const names = [];
  for (const row of rows) {
    const sum = Object.values(row.parts).reduce((a, b) => a + b, 0);
    for (const name in row.parts) if (row.parts[name] > 5e-4 * sum && !names.includes(name)) names.push(name);
  }
  const limit = options.limit || 0;
  const most = Math.max(limit, ...rows.map((row) => Object.values(row.parts).reduce((a, b) => a + b, 0)));
  const holder = el(parent, 'div', {class: 'bars'});
  for (const row of rows) {
    const sum = Object.values(row.parts).reduce((a, b) => a + b, 0);
    const head = el(holder, 'div', {style: 'display:flex;flex-wrap:wrap;gap:0 10px;font-size:.87rem;margin-top:6px'});
    el(head, 'strong', {}, row.name);
    if (row.about) el(head, 'span', {class: 'soft'}, row.about);
    el(head, 'span', {style: 'margin-left:auto'}, format(sum) + (limit ? ' of ' + format(limit) : ''));
    const line = el(holder, 'div', {style: 'display:flex;height:20px;position:relative;background:var(--idle);border-radius:3px;overflow:hidden'});
    for (const name of names) {
      const value = row.parts[name] || 0;
      if (value <= 0) continue;
      const piece = el(line, 'div', {class: 'part', 'data-part': name});
      piece.style.width = 100 * value / most + '%';
      piece.style.background = colourOf(name, names);
      if (name.includes('bubble')) piece.style.background = 'repeating-linear-gradient(45deg, var(--mid) 0 4px, var(--idle) 4px 8px)';
      tipped(piece, name + ': ' + format(value) + ' (' + percent(value / sum) + ')');
    }
    if (limit) el(line, 'div', {style: 'position:absolute;top:0;bottom:0;width:2px;background:var(--ink);left:calc(' + 100 * limit / most + '% - 2px)'});
  }
  const total = Object.values(rows[0].parts).reduce((a, b) => a + b, 0);
  legend(parent, names.map((name) => [name.includes('bubble') ? tone('--mid') : colourOf(name, names),
    name + (rows[0].parts[name] > 0 ? ' ' + percent(rows[0].parts[name] / total) : '')]));
}

function timesView(data) {
  const node = section('time', 'Where the time goes', 'One training step by cause, of the answer and of the next best. '
    + 'The shares in the legend are those of the first bar.');
  for (const group of data.times) {
    if (data.times.length > 1) el(node, 'h3', {}, group.title);
    stack(node, group.rows, seconds, {});
  }
  for (const model of data.models) {
    if (!Object.keys(model.energy_J).length) continue;
    el(node, 'h3', {}, 'Energy of a step' + (data.models.length > 1 ? ': ' + model.model : '') + ', all devices');
    stack(node, [{name: 'best', about: '', parts: model.energy_J}], joules, {});
  }
}

function memoryView(data) {
  const node = section('memory', 'Memory of a device, by stage', 'Bytes on the fullest device of every pipeline stage; '
    + 'the line marks what the device has.');
  for (const model of data.models) {
    if (data.models.length > 1) el(node, 'h3', {}, model.model);
    const rows = model.memory.stages.map((s) => ({name: s.name, about: s.layers.join(', '), parts: s.parts}));
    stack(node, rows, bytes, {limit: model.memory.capacity_bytes});
  }
}

function sensitivityView(data) {
  const found = data.sensitivity;
  const node = section('sensitivity', 'What a little more would be worth', found.per_mm2
    ? 'Neighbours of the best chip, each with one part changed, evaluated in full. Finite differences: a step may change '
      + 'tilings and layout. The bandwidth of HBM and links is changed at no area, so that it has no figure per mm².'
    : 'The same layout estimated again on a machine with one rate changed.');
  const table = el(el(node, 'div', {class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'Sensitivities'}), 'table', {id: 'sensitivity-table', style: 'white-space:nowrap'});
  const head = el(table, 'tr');
  const names = ['part', 'change', 'throughput', '', ...(found.per_mm2 ? ['area', found.unit + ' per mm²'] : [])];
  names.forEach((name, i) => el(head, 'th', i > 1 && i !== 3 ? {class: 'n'} : {}, name));
  let most = 1e-9;
  for (const row of found.rows) for (const side of [row.less, row.more]) if (side.gain !== null) most = Math.max(most, Math.abs(side.gain));
  for (const row of found.rows) {
    for (const side of [row.more, row.less]) {
      const line = el(table, 'tr');
      el(line, 'td', {}, side === row.more ? row.what : '');
      el(line, 'td', {}, side.change.replace('-', '−'));
      el(line, 'td', {class: 'n'}, side.gain === null ? 'does not fit' : signed(side.gain).replace('-', '−'));
      const cell = el(line, 'td', {style: 'min-width:140px'});
      const picture = draw(cell, 'svg', {width: 140, height: 14, 'aria-hidden': 'true'});
      draw(picture, 'path', {d: 'M70 0v14', stroke: tone('--mid')});
      if (side.gain) draw(picture, 'rect', {x: side.gain > 0 ? 70 : 70 + 68 * side.gain / most, y: 2, height: 10,
        width: 68 * Math.abs(side.gain) / most, fill: side.gain > 0 ? PALETTE[0] : PALETTE[5]});
      if (found.per_mm2) {
        el(line, 'td', {class: 'n'}, Math.abs(side.area_mm2) < 1e-9 ? '–' : (side.area_mm2 > 0 ? '+' : '−') + digits(Math.abs(side.area_mm2), 3) + ' mm²');
        el(line, 'td', {class: 'n'}, side.per_mm2 === null ? '–' : digits(side.per_mm2, 3));
      }
    }
  }
}
