// A report: the data that the file holds, drawn.

import { h } from "./base/dom.js";
import { pageOf } from "./views/page.js";

const { content } = document.querySelector("meta[name=generator]");
document.getElementById("page").replaceChildren(
  pageOf(JSON.parse(document.getElementById("data").textContent)),
  h("footer", { class: "muted" }, `Written by ${content}. This file loads nothing from the network.`));
// Pictures are drawn once they have a width: at the end of the next frame.
requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.ready = "yes"; }));
