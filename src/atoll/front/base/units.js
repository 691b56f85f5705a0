// How numbers are written.

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Four significant digits, thousands apart; whole numbers whole. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) || Math.abs(value) >= 10 ** (digits - 1)) return counts.format(value || 0); // never -0
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size < -4) return value.toExponential(2);
  return value.toLocaleString("en", { maximumFractionDigits: Math.max(0, digits - 1 - size) });
}

/** `number` with trailing zeros, so that the values of a column line up. */
export function even(value, digits = 4) {
  if (!Number.isFinite(value) || Number.isInteger(value) || Math.abs(value) >= 10 ** (digits - 1)) return number(value, digits);
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return places > 8 ? number(value) : value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
}

/** In the largest unit that leaves at least one. */
const scaled = (...units) => (value) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const [unit, size] = value === 0 ? units.find(([, one]) => one === 1) : units.findLast(([, one]) => Math.abs(value) >= 0.9999 * one) ?? units[0];
  return `${number(value / size)}\u00a0${unit}`;
};

export const seconds = scaled(["ns", 1e-9], ["µs", 1e-6], ["ms", 1e-3], ["s", 1]);
/** Of a search, which may take hours. */
export const duration = scaled(["ms", 1e-3], ["s", 1], ["min", 60], ["h", 3600]);
export const bytes = scaled(["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30], ["TiB", 2 ** 40]);
export const rate = scaled(["B/s", 1], ["GB/s", 1e9], ["TB/s", 1e12]);
export const joules = scaled(["µJ", 1e-6], ["mJ", 1e-3], ["J", 1], ["kJ", 1e3], ["MJ", 1e6]);
export const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)}%`;
/** With its sign, a true minus. */
export const signed = (text, value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${text(Math.abs(value))}`;

/** "1 design", "1,024 designs". */
export const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Round steps for an axis. */
export function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((size) => size >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step || 0); // never -0
  return found;
}

/** The same for a logarithmic axis: 1, 2, 5 of every decade, or powers of ten where those are many. */
export function logTicks(low, high, most) {
  if (high / low < 8) return ticks(low, high, most);
  const found = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++) {
    found.push(...[1, 2, 5].map((k) => k * 10 ** p).filter((v) => v >= low && v <= high));
  }
  return found.length > most ? found.filter((v) => Number.isInteger(Math.log10(v))) : found;
}

/** An axis label with as many digits as neighbouring ticks need. */
export function tickText(value, step) {
  let digits = 0;
  const off = () => { const scaled = (step || 1) * 10 ** digits; return Math.abs(scaled - Math.round(scaled)) > 1e-6 * scaled; };
  while (digits < 8 && off()) digits++;
  return value.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: digits });
}
