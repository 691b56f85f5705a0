// What columns are called, and how their values are shown.

const MiB = 2 ** 20, GiB = 2 ** 30;

export const COLUMNS = {
  chip: { label: "Design", unit: "", per: 1 },
  score: { label: "Score", unit: "", per: 1 },
  samples_per_s: { label: "Throughput", unit: "samples/s", per: 1 },
  area_mm2: { label: "Area", unit: "mm²", per: 1 },
  power_W: { label: "Power", unit: "W", per: 1 },
  energy_per_token_J: { label: "Energy/token", unit: "mJ", per: 1e-3 },
  step_time_s: { label: "Step time", unit: "s", per: 1 },
  microbatch: { label: "Microbatch", unit: "", per: 1 },
  tensor: { label: "Tensor width", unit: "", per: 1 },
  pipeline: { label: "Pipeline stages", unit: "", per: 1 },
  data: { label: "Data copies", unit: "", per: 1 },
};

/** Columns of what a chip is made of: those that the run's template names. */
export const PARAMETERS = [];
export const PLAN = ["microbatch", "tensor", "pipeline", "data"];

export function nameParameters(parameters) {
  PARAMETERS.splice(0, PARAMETERS.length, ...parameters.map((p) => p.name));
  for (const p of parameters) COLUMNS[p.name] = p;
}

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Four significant digits, thousands apart; whole numbers whole. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) || Math.abs(value) >= 10 ** (digits - 1)) return counts.format(value);
  const size = value === 0 ? 0 : Math.floor(Math.log10(Math.abs(value)));
  if (size < -4) return value.toExponential(2);
  return value.toLocaleString("en", { maximumFractionDigits: Math.max(0, digits - 1 - size) });
}

/** `number` with trailing zeros, so that the values of a column line up. */
function even(value, digits = 4) {
  if (!Number.isFinite(value) || Number.isInteger(value) || Math.abs(value) >= 10 ** (digits - 1)) return number(value, digits);
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return places > 8 ? number(value) : value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
}

export const shown = (name, value) => even(value === null || value === undefined ? NaN : value / COLUMNS[name].per);

/** Enough digits to tell neighbouring ends of a range apart. */
export const precise = (name, value) => String(Number((value / COLUMNS[name].per).toPrecision(7)));

export function withUnit(name, value) {
  const unit = COLUMNS[name].unit;
  return unit ? `${shown(name, value)} ${unit}` : shown(name, value);
}

export const title = (name) => {
  const { label, unit } = COLUMNS[name];
  return unit ? `${label} (${unit})` : label;
};

/** With one model the score is its throughput; with several it has no unit. */
export function nameScore(models) {
  const single = models.length === 1;
  COLUMNS.score.label = single ? "Throughput" : "Score";
  COLUMNS.score.unit = single ? "samples/s" : "";
  return single;
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0\u00a0s";
  if (value < 1e-3) return `${even(value * 1e6, 3)}\u00a0µs`;
  if (value < 1) return `${even(value * 1e3, 3)}\u00a0ms`;
  if (value < 120) return `${even(value, 3)}\u00a0s`;
  if (value < 7200) return `${even(value / 60, 3)}\u00a0min`;
  return `${even(value / 3600, 3)}\u00a0h`;
}

export const bytes = (value) => (value >= GiB || value === 0 ? `${even(value / GiB, 3)}\u00a0GiB` : `${even(value / MiB, 3)}\u00a0MiB`);
export const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)}%`;

export const describe = (d) => PARAMETERS.map((name) => `${COLUMNS[name].label} ${withUnit(name, d[name])}`).join(", ");

/** Round steps for an axis. */
export function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step || 0); // never -0
  return found;
}

/** An axis label with as many digits as neighbouring ticks need. */
export function tickText(value, step) {
  const digits = Math.max(0, Math.min(8, Math.ceil(-Math.log10(step || 1) - 1e-9) + (step && String(step).includes("25") ? 1 : 0)));
  return value.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: digits });
}

/** "1 design", "1,024 designs". */
export const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

/** What a search looks at, by the kind of a run. */
export const NOUNS = { search: "chip", wafer: "candidate", planning: "layout" };
