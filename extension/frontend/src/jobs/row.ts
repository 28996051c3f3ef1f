/** One job in the list: state in a word and a colour, name, when, last figure. */

import { el, setText } from "../elements";
import { agoText, durationText, numberText } from "../figures";
import { elapsed, statusClass, statusWord, userMetrics } from "../sentences";
import { isTerminal, type RunView } from "../types";
import type { Words } from "../words";

export interface Row {
  node: HTMLElement;
  update(view: RunView): void;
  /** Brings the times up to date. */
  tick(): void;
}

export function makeRow(view: RunView, parts: { words: Words; open(view: RunView): void }): Row {
  const { words } = parts;
  const state = el("span", { class: "sl-state" });
  const name = el("span", { class: "sl-name" });
  const when = el("span", { class: "sl-when" });
  const figure = el("span", { class: "sl-figure" });
  const dot = el("span", { class: "sl-dot", "aria-hidden": "true" });
  const button = el(
    "button",
    { type: "button", class: "sl-job", onclick: () => parts.open(now) },
    el("span", { class: "sl-line" }, dot, state, name),
    el("span", { class: "sl-line sl-dim" }, el("code", {}, view.run_id), when, figure),
  );
  let now = view;
  const row = {
    node: el("li", {}, button),
    update(next: RunView): void {
      now = next;
      button.dataset.run = next.run_id;
      button.dataset.status = next.status;
      button.className = `sl-job ${statusClass(next.status)}`;
      setText(state, statusWord(next.status, words, next.reason));
      setText(name, next.name);
      setText(figure, figureText(next));
      row.tick();
    },
    tick: () => setText(when, whenText(now, words)),
  };
  row.update(view);
  return row;
}

/** A running job: for how long; one that is over: how long ago, and how long it took. */
function whenText(view: RunView, words: Words): string {
  if (isTerminal(view.status) && view.ended) {
    const took = durationText(elapsed(view), words);
    return words.__("%1, took %2", agoText(view.ended, words), took);
  }
  if (view.status === "WAITING" && view.position && view.position > 1) {
    return words._n("%1 job ahead", "%1 jobs ahead", view.position - 1);
  }
  return durationText(elapsed(view), words);
}

/** The last value of the notebook's first metric, a loss before others: `loss 0.0841`. */
function figureText(view: RunView): string {
  const [key] = userMetrics(Object.keys(view.latest));
  return key ? `${key} ${numberText(view.latest[key][1])}` : "";
}
