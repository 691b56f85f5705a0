// The page from its data, section by section.

function headView(data) {
  const page = document.getElementById('page');
  page.textContent = '';
  el(page, 'h1', {}, data.title);
  el(page, 'p', {class: 'lead', id: 'answer'}, data.sentence);
  el(page, 'p', {class: 'proof', id: 'certificate'}, data.certificate);
  for (const note of data.notes) el(page, 'p', {class: 'warn'}, note);
  const links = el(page, 'nav', {'aria-label': 'Contents'});
  const facts = el(page, 'section', {id: 'facts', 'aria-label': 'Figures'});
  const list = el(facts, 'dl', {class: 'facts', style: 'margin-top:0'});
  for (const [name, value] of data.facts) {
    const item = el(list, 'div');
    el(item, 'dt', {}, name);
    el(item, 'dd', {}, value);
  }
  return links;
}

function baselinesView(data) {
  const node = section('baselines', 'Baselines', 'Evaluated by the same code.');
  const table = el(el(node, 'div', {class: 'scroll'}), 'table', {id: 'baseline-table'});
  const head = el(table, 'tr');
  ['baseline', data.unit, 'speedup'].forEach((t, i) => el(head, 'th', i ? {class: 'n'} : {}, t));
  const rows = [{name: 'this answer', score: data.score}, ...data.baselines];
  const most = Math.max(...rows.map((r) => r.score || 0));
  for (const b of rows) {
    const row = el(table, 'tr');
    el(row, 'td', {}, b.name);
    el(row, 'td', {class: 'n'}, b.score ? digits(b.score, 5) : 'does not fit');
    el(row, 'td', {class: 'n'}, b.score ? (data.score / b.score).toFixed(2) + '×' : '');
    const cell = el(row, 'td'), bar = el(cell, 'div', {style: 'height:12px;border-radius:2px;margin-top:5px'});
    bar.style.width = Math.min(180, innerWidth / 4) * (b.score || 0) / most + 'px';
    bar.style.background = b.name === 'this answer' ? PALETTE[0] : PALETTE[5];
    if (b.remark) el(cell, 'div', {class: 'soft'}, b.remark);
  }
}

function reasonsView(data) {
  const node = section('why', 'Why this layout', 'The best neighbour on every axis, and what it would cost.');
  const list = el(node, 'ul', {class: 'plain'});
  for (const reason of data.reasons) el(list, 'li', {}, reason);
}

(function () {
  const data = JSON.parse(document.getElementById('data').textContent);
  const links = headView(data);
  if (data.chip) chipView(data);
  if (data.wafer) waferView(data);
  if (data.space) spaceView(data);
  if (data.cluster) clusterView(data);
  timesView(data);
  if (data.baselines && data.baselines.length) baselinesView(data);
  if (data.reasons && data.reasons.length) reasonsView(data);
  if (data.models.some((m) => m.layers.length)) scheduleView(data);
  pipelineView(data);
  memoryView(data);
  if (data.sensitivity) sensitivityView(data);
  if (data.launch) launchView(data);
  for (const [id, title] of CONTENTS) el(links, 'a', {href: '#' + id}, title.replace(/[:,].*/, ''));
  el(document.getElementById('page'), 'footer', {}, 'Made by ' + document.querySelector('meta[name=generator]').content + '. This file fetches nothing.');
  document.documentElement.dataset.ready = 'yes';
})();
