// One palette for all that is drawn, after Okabe and Ito: told apart with any kind of colour vision.
// The style sheet has every colour for light and for dark pages.

export const PALETTE = ["blue", "orange", "green", "pink", "sky", "vermilion", "yellow", "grey", "violet", "wine", "slate"];

export const tone = (name) => `var(--${name})`;
export const nth = (i) => tone(PALETTE[i % PALETTE.length]);

const PARTS = {
  compute: "blue", "tensor parallel": "orange", collectives: "orange", recompute: "green", recomputation: "green",
  optimizer: "pink", transfers: "sky", "pipeline sends": "sky", "gradient reduction": "vermilion",
  "context parallel": "yellow", bubble: "grey", "pipeline bubble": "grey", host: "slate", "expert parallel": "wine",
  "sharded weights": "violet", weights: "blue", gradients: "orange", activations: "green", buffers: "vermilion",
  transient: "sky", logits: "yellow", guests: "wine", reserve: "grey",
};

/** A colour for every part of one chart, no two alike: its own where no part before has it, else one that is left. */
export function partColours(names) {
  const chosen = new Map(), taken = new Set();
  const take = (name, colour) => { chosen.set(name, tone(colour)); taken.add(colour); };
  for (const name of names) if (name in PARTS && !taken.has(PARTS[name])) take(name, PARTS[name]);
  const left = PALETTE.filter((colour) => !taken.has(colour));
  names.filter((name) => !chosen.has(name)).forEach((name, i) => take(name, left.length ? left[i % left.length] : PALETTE[i % PALETTE.length]));
  return chosen;
}
