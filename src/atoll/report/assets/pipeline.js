// The pipeline over one step: a lane for each stage, bubbles included; zoom and scroll.

const PASS_COLOURS = {'forward': 0, 'backward': 1, 'weight gradient': 2, 'gradient reduction': 5, 'optimizer': 3, 'gradient accumulation': 4};

function passColour(name, idle) {
  if (name === 'bubble') return idle;
  return PALETTE[name in PASS_COLOURS ? PASS_COLOURS[name] : 7];
}

function pipelineView(data) {
  const models = data.models.filter((m) => m.pipeline);
  if (!models.length) return;
  const node = section('pipeline', 'The pipeline over one step',
    'A lane for every stage, replayed pass by pass. Pale gaps are bubbles: the stage waits.');
  for (const model of models) {
    if (models.length > 1) el(node, 'h3', {}, model.model);
    onePipeline(node, model, models.indexOf(model));
  }
}

function onePipeline(node, model, number) {
  const line = model.pipeline, names = line.names;
  const idle = line.idle_s.reduce((a, b) => a + b, 0) / line.idle_s.length / line.step_time_s;
  el(node, 'p', {class: 'note'}, line.stages.length + ' stage' + (line.stages.length > 1 ? 's' : '') + ', ' + whole(line.microbatches)
    + ' microbatches, a step of ' + seconds(line.step_time_s) + '; stages wait ' + percent(idle) + ' of it on average.'
    + ' The replay’s clock is stretched by ' + line.stretch.toFixed(4) + ' to the step’s time.'
    + (line.end_s > 1.0001 * line.step_time_s ? ' Steps follow one another without a barrier: later stages begin and end theirs later.' : '')
    + (line.left_out ? ' Of the middle, ' + whole(line.left_out) + ' passes are left out of the picture.' : ''));
  const controls = el(node, 'div', {class: 'controls'});
  let zoom = 1;
  const smaller = el(controls, 'button', {type: 'button'}, 'zoom out');
  const larger = el(controls, 'button', {type: 'button', id: 'pipeline-zoom-' + number}, 'zoom in');
  const state = el(controls, 'span', {class: 'soft', 'aria-live': 'polite'});
  const holder = el(node, 'div', {style: 'display:grid;grid-template-columns:58px minmax(0,1fr)'});
  const labels = el(holder, 'div'), scroll = el(holder, 'div', {class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'Pipeline timeline'});
  const canvas = el(scroll, 'canvas', {id: 'pipeline-plot-' + number, role: 'img', 'aria-label': 'Passes of every stage over time'});
  const lane = line.stages.length > 16 ? 14 : 24;
  line.stages.forEach((_, i) => {
    const each = Math.ceil(line.stages.length / 32);
    el(labels, 'div', {class: 'soft', style: 'height:' + lane + 'px;line-height:' + lane + 'px;font-size:' + Math.min(13, lane - 2) + 'px;white-space:nowrap'},
      i % each ? '' : 'stage ' + i);
  });
  let width = 0;

  function paint() {
    const height = lane * line.stages.length + 26;
    width = Math.min(30000, Math.max(240, scroll.clientWidth) * zoom);
    const pen = sharpCanvas(canvas, width, height);
    const fx = (v) => width * v / line.end_s;
    line.stages.forEach((row, i) => {
      const top = i * lane + 1, tall = lane - 3;
      pen.fillStyle = css('--line'); pen.fillRect(0, top, width, tall);
      for (const [k, start, end, microbatch] of row) {
        const x = fx(start), w = Math.max(0.3, fx(end) - x);
        pen.fillStyle = passColour(names[k], css('--idle'));
        pen.fillRect(x, top, w > 3 ? w - 0.7 : w, tall);
        if (microbatch !== undefined && w > 15 && tall > 12) {
          pen.fillStyle = names[k] === 'backward' ? '#000' : '#fff'; pen.textAlign = 'center'; pen.textBaseline = 'middle';
          pen.fillText(microbatch, x + w / 2, top + tall / 2 + 1);
        }
      }
    });
    pen.fillStyle = css('--soft'); pen.textBaseline = 'top';
    for (const v of steps(0, line.end_s, width / 110)) {
      const x = fx(v), text = seconds(v);
      if (x > width - 30) continue;
      pen.textAlign = x < 20 ? 'left' : 'center';
      pen.fillText(text, x, height - 18);
    }
    state.textContent = '×' + zoom;
  }

  function about(event) {
    const box = canvas.getBoundingClientRect();
    const at = (event.clientX - box.left) / width * line.end_s, i = Math.floor((event.clientY - box.top) / lane);
    const row = line.stages[i];
    const found = row && row.find(([, start, end]) => start <= at && at < end);
    if (!found) return tip('');
    const [k, start, end, microbatch, chunk] = found;
    tip('stage ' + i + ': ' + names[k] + (microbatch === undefined ? '' : ' of microbatch ' + microbatch + (chunk ? ', chunk ' + chunk : ''))
      + '\n' + seconds(end - start) + ' from ' + seconds(start), event.clientX, event.clientY);
  }
  const change = (factor) => {
    const middle = (scroll.scrollLeft + scroll.clientWidth / 2) / width;
    zoom = Math.max(1, Math.min(64, zoom * factor));
    paint();
    scroll.scrollLeft = middle * width - scroll.clientWidth / 2;
  };
  smaller.addEventListener('click', () => change(0.5));
  larger.addEventListener('click', () => change(2));
  canvas.addEventListener('pointermove', about);
  canvas.addEventListener('click', about);
  canvas.addEventListener('pointerleave', () => tip(''));
  legend(node, names.map((name) => [passColour(name, tone('--idle')), name, name === 'bubble' ? tone('--mid') : '']));
  redrawn(paint);
}
