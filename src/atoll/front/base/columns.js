// Figures and parameters of a design: what they are called, and how their values are shown.

import { even } from "./units.js";

export const COLUMNS = {
  chip: { label: "Design", unit: "", per: 1 },
  score: { label: "Score", unit: "", per: 1 },
  samples_per_s: { label: "Throughput", unit: "samples/s", per: 1 },
  area_mm2: { label: "Area", unit: "mm²", per: 1 },
  peak_power_W: { label: "Power at peak", unit: "W", per: 1 },
  power_W: { label: "Power, running", unit: "W", per: 1 },
  energy_per_token_J: { label: "Energy/token", unit: "mJ", per: 1e-3 },
  step_time_s: { label: "Step time", unit: "s", per: 1 },
  microbatch: { label: "Microbatch", unit: "", per: 1 },
  tensor: { label: "Tensor parallel (tp)", unit: "", per: 1 },
  pipeline: { label: "Pipeline stages", unit: "", per: 1 },
  data: { label: "Data parallel (dp)", unit: "", per: 1 },
};

/** Columns of what a chip is made of: those that the run's template names. */
export const PARAMETERS = [];
export const PLAN = ["microbatch", "tensor", "pipeline", "data"];

export function nameParameters(parameters) {
  PARAMETERS.splice(0, PARAMETERS.length, ...parameters.map((p) => p.name));
  for (const p of parameters) COLUMNS[p.name] = p;
}

/** With one model the score is its throughput; with several it has no unit. */
export function nameScore(models) {
  const single = models.length === 1;
  COLUMNS.score.label = single ? "Throughput" : "Score";
  COLUMNS.score.unit = single ? "samples/s" : "";
  return single;
}

export const shown = (name, value) => even(value === null || value === undefined ? NaN : value / COLUMNS[name].per);

/** Enough digits to tell neighbouring ends of a range apart. */
export const precise = (name, value) => String(Number((value / COLUMNS[name].per).toPrecision(7)));

const joined = (text, unit) => (unit ? `${text} ${unit}` : text);
export const withUnit = (name, value) => joined(shown(name, value), COLUMNS[name].unit);
export const title = (name) => joined(COLUMNS[name].label, COLUMNS[name].unit && `(${COLUMNS[name].unit})`);
export const describe = (row, names = PARAMETERS) => names.map((name) => `${COLUMNS[name].label} ${withUnit(name, row[name])}`).join(", ");
