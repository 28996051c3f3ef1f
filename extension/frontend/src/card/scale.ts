/** Another number of workers for an elastic gang, while it runs. */

import { el } from "../elements";
import type { RunView } from "../types";
import type { Words } from "../words";
import type { Section } from "./outputs";

export interface Scale extends Section {
  /** False where the launcher cannot be asked. */
  allow(may: boolean): void;
}

/** `send` posts the number; the launcher knows the most, and its refusal is told where all faults are. */
export function makeScale(words: Words, send: (workers: number) => Promise<void>): Scale {
  const field = el("input", { type: "number", step: 1, required: true, "aria-label": words.__("workers") });
  const set = el("button", { type: "submit" }, words.__("Scale"));
  const label = el("span", { class: "sl-dim" }, words.__("workers"));
  const node = el("form", { class: "sl-scale", hidden: true }, label, field, set);
  let [elastic, may, sent] = [false, true, ""];
  const show = (): void => void (node.hidden = !elastic || !may);
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target !== field) return;
    event.preventDefault(); // inside an output of JupyterLab the browser's own submission does not come
    node.requestSubmit();
  });
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    if (node.ariaBusy === "true" || !field.reportValidity()) return; // not `disabled`: the focus would be lost
    node.ariaBusy = "true";
    void send(Number(field.value)).finally(() => (node.ariaBusy = null));
  });
  return {
    node,
    allow(now) {
      may = now;
      show();
    },
    update({ spec, status }: RunView) {
      const least = spec.min_workers ?? null;
      elastic = least !== null && status === "RUNNING";
      if (least !== null) field.min = String(least);
      // what is being typed stays until the number itself has changed
      if (sent !== String(spec.workers)) field.value = sent = String(spec.workers);
      show();
    },
  };
}
