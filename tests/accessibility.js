// What keeps keyboards, screen readers and narrow screens out of a page, as a list of sentences; see accessibility.py.
(() => {
  const problems = [];
  const all = (selector) => [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility());
  const short = (e) => `${e.tagName.toLowerCase()}${e.id ? '#' + e.id : ''} "${(e.innerText ?? e.textContent ?? '').trim().slice(0, 40)}"`;
  const tell = (what, e) => problems.push(`${what}: ${short(e)}`);

  // Names of controls and pictures.
  const named = (e) => e.getAttribute('aria-label')?.trim() || e.getAttribute('aria-labelledby')
    || [...(e.labels ?? [])].some((label) => label.innerText.trim());
  for (const e of all('input, select, textarea')) if (!named(e)) tell('no label', e);
  for (const e of all('button, a[href], summary')) if (!named(e) && !e.innerText.trim()) tell('no name', e);
  for (const e of all('[role=img], [role=application], [role=group], nav')) if (!named(e)) tell('no name', e);
  const ids = all('[id]').map((e) => e.id);
  for (const id of new Set(ids)) if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push(`twice the id ${id}`);

  // Landmarks and headings.
  if (!document.documentElement.lang || !document.title) problems.push('no language or title');
  if (all('main').length !== 1) problems.push('not one main');
  if (!document.querySelector('a.skip[href^="#"]')) problems.push('no skip link');
  const levels = all('h1, h2, h3, h4').map((e) => Number(e.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1) problems.push(`${levels.filter((l) => l === 1).length} h1`);
  levels.forEach((level, i) => { if (i && level > levels[i - 1] + 1) problems.push(`h${level} after h${levels[i - 1]}`); });

  // Tables.
  for (const e of all('table')) if (!e.querySelector('th[scope]')) tell('no headers', e);
  for (const e of all('th')) if (!e.textContent.trim()) tell('empty header', e);

  // Width: nothing sticks out of the window, unless a box around it scrolls or hides it.
  const wide = document.documentElement.clientWidth;
  const boxed = (e) => {
    for (let p = e.parentElement; p && p !== document.body; p = p.parentElement) {
      if (getComputedStyle(p).overflowX !== 'visible') return p.getBoundingClientRect().right <= wide + 1;
    }
    return false;
  };
  for (const e of all('body *:not(svg *)')) {
    const box = e.getBoundingClientRect();
    if (box.width > 1 && box.right > wide + 1 && !e.matches('.skip') && !boxed(e)) tell(`ends at ${Math.round(box.right)} of ${wide}`, e);
  }

  // Targets.
  for (const e of all('button, select, a.button, summary, input:not([type=checkbox], [type=range], [type=file])')) {
    const { width, height } = e.getBoundingClientRect();
    if (Math.min(width, height) < 24 && !e.closest('.unseen')) tell(`target of ${Math.round(width)} x ${Math.round(height)}`, e);
  }

  // Contrast.
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const linear = (v) => (v <= 0.04045 * 255 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const background = (e) => {
    const layers = [];
    for (let p = e; p && layers.at(-1)?.[3] !== 1; p = p.parentElement) layers.push(rgba(getComputedStyle(p).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const SKIPPED = 'script, style, noscript, title, .on, .skip, .unseen, :disabled';
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility() || e.closest(SKIPPED)) continue;
    const style = getComputedStyle(e), back = background(e);
    const front = over(rgba(e.namespaceURI.endsWith('svg') ? style.fill : style.color), back);
    const [high, low] = [luminance(front), luminance(back)].sort((p, q) => q - p), ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) tell(`contrast ${ratio.toFixed(2)}`, e);
  }
  return [...new Set(problems)];
})()
