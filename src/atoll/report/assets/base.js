// Small helpers that every view shares: elements, numbers, colours, axes, the tip.

// Okabe and Ito's palette: told apart by readers with any kind of colour vision.
const PALETTE = ['#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00', '#B3A000', '#7F7F7F',
  '#5B4B9A', '#8C510A'];
const SVG = 'http://www.w3.org/2000/svg';

function put(parent, node) { if (parent) parent.appendChild(node); return node; }

function el(parent, name, attributes, text) {
  const node = document.createElement(name);
  for (const key in attributes || {}) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return put(parent, node);
}

function draw(parent, name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes || {}) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return put(parent, node);
}

// A colour of the page: for elements it follows the colour scheme, for a canvas it is the value now.
function tone(name) { return 'var(' + name + ')'; }

function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function digits(value, count) {
  if (value === 0) return '0';
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size >= 9 || size < -4) return value.toPrecision(count);
  const shown = Math.max(0, Math.min(8, count - 1 - size));
  const text = value.toLocaleString('en-US', {minimumFractionDigits: shown, maximumFractionDigits: shown});
  return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

function scaled(value, units, count) {
  let chosen = units[0];
  for (const unit of units) if (Math.abs(value) >= unit[1] * 0.9999) chosen = unit;
  return digits(value / chosen[1], count || 4) + ' ' + chosen[0];
}

const seconds = (v) => v === 0 ? '0 s' : scaled(v, [['ns', 1e-9], ['µs', 1e-6], ['ms', 1e-3], ['s', 1]]);
const bytes = (v) => v === 0 ? '0 B' : scaled(v, [['B', 1], ['KiB', 1024], ['MiB', 1048576],
  ['GiB', 1073741824], ['TiB', 1099511627776]]);
const rate = (v) => scaled(v, [['B/s', 1], ['GB/s', 1e9], ['TB/s', 1e12]]);
const joules = (v) => scaled(v, [['µJ', 1e-6], ['mJ', 1e-3], ['J', 1], ['kJ', 1e3], ['MJ', 1e6]]);
const percent = (v, n) => (100 * v).toFixed(n === undefined ? 1 : n) + '%';
const signed = (v, n) => (v > 0 ? '+' : '') + percent(v, n === undefined ? 2 : n);
const whole = (v) => Math.round(v).toLocaleString('en-US');

// --- Sections -------------------------------------------------------------------------------------

const CONTENTS = [];

function section(id, title, about) {
  const node = el(document.getElementById('page'), 'section', {id: id, 'aria-labelledby': id + '-title'});
  el(node, 'h2', {id: id + '-title'}, title);
  if (about) el(node, 'p', {class: 'soft'}, about);
  CONTENTS.push([id, title]);
  return node;
}

function legend(parent, entries) {
  const list = el(parent, 'ul', {class: 'legend'});
  for (const [colour, text, outline] of entries) {
    const item = el(list, 'li');
    const key = el(item, 'span', {class: 'key'});
    key.style.background = colour;
    if (outline) key.style.borderColor = outline;
    el(item, 'span', {}, text);
  }
  return list;
}

// Parts that several charts show have one colour; the others take what their chart has left.
const NAMED = {compute: 0, 'tensor parallel': 1, collectives: 1, recompute: 2, recomputation: 2, optimizer: 3, transfers: 4,
  'pipeline sends': 4, 'gradient reduction': 5, 'context parallel': 6, host: 7, 'expert parallel': 8, 'sharded weights': 9,
  weights: 0, gradients: 1, activations: 2, buffers: 5, transient: 4, logits: 6, guests: 7};

function colourOf(name, among) {
  const own = among.filter((n, i) => n in NAMED && !among.slice(0, i).some((m) => NAMED[m] === NAMED[n]));
  if (own.includes(name)) return PALETTE[NAMED[name]];
  const taken = own.map((n) => NAMED[n]);
  const free = PALETTE.map((_, i) => i).filter((i) => !taken.includes(i));
  const others = among.filter((n) => !own.includes(n));
  return PALETTE[free[others.indexOf(name) % free.length]];
}

// --- The tip --------------------------------------------------------------------------------------

let tipNode = null;

function tip(text, x, y) {
  if (!text) { if (tipNode) tipNode.hidden = true; return; }
  if (!tipNode) tipNode = el(document.body, 'div', {class: 'tip', role: 'status'});
  tipNode.hidden = false;
  tipNode.textContent = text;
  const box = tipNode.getBoundingClientRect();
  tipNode.style.left = Math.max(4, Math.min(x + 12, innerWidth - box.width - 4)) + 'px';
  tipNode.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 14) + 'px';
}

function tipped(node, text) {
  node.addEventListener('pointermove', (event) => tip(text, event.clientX, event.clientY));
  node.addEventListener('pointerleave', () => tip(''));
  if (node.namespaceURI === SVG) draw(node, 'title', {}, text);
  return node;
}

// --- Axes -----------------------------------------------------------------------------------------

function steps(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const unit = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough);
  const found = [];
  for (let v = Math.ceil(low / unit) * unit; v <= high + unit * 1e-9; v += unit) found.push(+v.toPrecision(12));
  return found;
}

function powers(low, high, count) {
  if (high / low < 8) return steps(low, high, Math.min(6, count));
  const found = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++) {
    for (const k of [1, 2, 5]) {
      const v = k * Math.pow(10, p);
      if (v >= low * 0.999 && v <= high * 1.001) found.push(v);
    }
  }
  return found.length > 8 ? found.filter((v) => /^1/.test(v.toExponential())) : found;
}

function sharpCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + 'px';
  canvas.style.height = height + 'px';
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
  return pen;
}

// Draws again when the window or the colour scheme changes.
const REDRAWN = [];

function redrawn(action) { REDRAWN.push(action); action(); }

let redrawing = 0;
function redrawAll() { cancelAnimationFrame(redrawing); redrawing = requestAnimationFrame(() => REDRAWN.forEach((a) => a())); }
addEventListener('resize', redrawAll);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redrawAll);
