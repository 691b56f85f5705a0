// A launch file, pasted or dropped: does it fit, how long is a step, which layout would be better.

import { answerLines, h, say, section } from "../base/dom.js";
import { pageOf } from "../views/page.js";
import { post } from "./api.js";

export class Check {
  constructor(devices) {
    this.name = "launch.sh";
    this.text = h("textarea", { id: "launch", rows: 12, spellcheck: "false", "aria-label": "Launch file",
      placeholder: "Paste or drop a Megatron-LM script, a torchtitan TOML, a DeepSpeed JSON, a NeMo YAML…" });
    this.device = h("select", { id: "check-device" }, devices.map((name) => h("option", { value: name, selected: name === "h100" }, name)));
    this.devices = h("input", { id: "check-devices", type: "number", min: 1, placeholder: "from the file" });
    this.model = h("input", { id: "check-model", type: "text", placeholder: "from the file" });
    this.file = h("input", { type: "file", id: "check-file", "aria-label": "Choose a file", onchange: () => this.take(this.file.files) });
    this.button = h("button", { type: "button", id: "judge", onclick: () => this.judge() }, "Check");
    this.verdict = h("div", { class: "stack", id: "verdict", "aria-live": "polite" });
    const asked = h("section", { class: "card", id: "paste" }, h("h2", {}, "Check a launch file"),
      h("p", { class: "muted" }, "The file is read on this machine. It is neither run nor kept."), this.text,
      h("div", { class: "row" }, this.file, h("label", {}, "Device ", this.device), h("label", {}, "Devices ", this.devices),
        h("label", {}, "Model ", this.model), this.button));
    asked.addEventListener("dragover", (event) => event.preventDefault());
    asked.addEventListener("drop", (event) => { event.preventDefault(); this.take(event.dataTransfer.files); });
    this.element = h("div", { class: "stack" }, asked, this.verdict);
  }

  changed() {}

  async take(files) {
    if (!files.length) return;
    this.name = files[0].name;
    this.text.value = await files[0].text();
  }

  async judge() {
    this.button.disabled = true;
    this.verdict.replaceChildren(h("p", { class: "muted", role: "status" }, "Checking: all layouts of the same job are compared."));
    const asked = { name: named(this.name, this.text.value), text: this.text.value, device: this.device.value, model: this.model.value.trim() };
    if (this.devices.value) asked.devices = Number(this.devices.value);
    try {
      const verdict = await post("/api/check", asked);
      this.verdict.replaceChildren(...verdictSections(verdict), pageOf(verdict.view, "h2"));
      say("The file is checked");
    } catch (error) {
      this.verdict.replaceChildren(h("p", { class: "card warn", role: "alert" }, error.message));
    }
    this.button.disabled = false;
  }
}

/** Readers go by what a name ends with; what is pasted has none. */
function named(name, text) {
  if (name !== "launch.sh") return name;
  const start = text.trimStart();
  if (start.startsWith("{")) return "launch.json";
  return /^\s*\[[\w.]+\]\s*$/m.test(start) ? "launch.toml" : /^[\w-]+:(\s|$)/m.test(start) && !/^\s*(export\s|--|\w+=)/m.test(start) ? "launch.yaml" : name;
}

function verdictSections({ check, summary }) {
  const { better, arguments: read } = check;
  return [
    section("verdict-lines", "Verdict", "", answerLines(summary)),
    ...(better ? [section("difference", "What would change", better.proof, h("pre", { tabindex: 0 }, better.launch_file))] : []),
    section("arguments", "Arguments", `${Object.keys(read.used).length} used, ${Object.keys(read.without_effect).length} without effect on time or memory.`,
      check.not_priced.length ? h("p", { class: "warn" },
        `Not priced: ${check.not_priced.join("; ")}. The interval is wider for it, and no layout is proven best.`) : null),
  ];
}
