/** The way of a run so far: every change of its status with its time. */

import { el, memo } from "../elements";
import { clockText, durationText } from "../figures";
import { statusClass, statusWord } from "../sentences";
import { isTerminal, type RunView, type StatusChange } from "../types";
import type { Words } from "../words";

const SHORTEST_SECONDS = 0.05; // what is written as 0.0 s

/** The row of the current attempt, and below it on demand every change of every attempt. */
export function makeSteps(words: Words): { node: HTMLElement; more: HTMLElement; update(view: RunView): void; tick(): void } {
  const node = el("ol", { class: "sl-steps", "aria-label": words.__("Status changes of this attempt") });
  const rows = el("tbody");
  const summary = el("summary");
  const more = el("details", { class: "sl-more", hidden: true }, summary, el("table", {}, head(words), rows));
  let view: RunView;
  const redraw = memo(() => {
    node.replaceChildren(...merged(view).map((change) => step(change, words)));
    rows.replaceChildren(...view.history.map((change) => row(change, words)));
    summary.textContent = words._n("%1 change", "all %1 changes", view.history.length);
    more.hidden = view.history.length === 0;
    tick();
  });
  const tick = () => {
    const shown = merged(view);
    const times = node.querySelectorAll<HTMLElement>(".sl-took");
    shown.forEach((change, index) => (times[index].textContent = took(change, { next: shown[index + 1], words })));
  };
  return {
    node,
    more,
    tick: () => view && tick(),
    update(newest) {
      view = newest;
      redraw(`${newest.attempt}/${newest.history.length}`);
    },
  };
}

/** The changes of the current attempt; the same status with another message counts once, one that just passed not at all. */
export function merged(view: RunView): StatusChange[] {
  const own = view.history.filter((change) => change.attempt === view.attempt);
  const changes = own.filter((change, index) => index === 0 || change.status !== own[index - 1].status);
  return changes.filter((change, index) => lasts(change, changes[index + 1]));
}

/** "Waiting 0.0 s" says nothing. */
function lasts(change: StatusChange, next: StatusChange | undefined): boolean {
  return next === undefined || next.time - change.time >= SHORTEST_SECONDS;
}

function step(change: StatusChange, words: Words): HTMLElement {
  const word = el("b", {}, statusWord(change.status, words, change.reason));
  const time = el("span", { class: "sl-took" });
  const item = el("li", { class: `sl-step ${statusClass(change.status)}` }, el("span", { class: "sl-dot", "aria-hidden": "true" }), word, time);
  item.title = [clockText(change.time), words.say(change.message || change.reason)].filter(Boolean).join(" · ");
  return item;
}

function took(change: StatusChange, { next, words }: { next?: StatusChange; words: Words }): string {
  if (isTerminal(change.status)) return clockText(change.time);
  return durationText((next?.time ?? Date.now() / 1000) - change.time, words);
}

function head(words: Words): HTMLElement {
  const titles = [words.__("time"), words.__("attempt"), words.__("status"), words.__("what was said")];
  return el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title))));
}

function row(change: StatusChange, words: Words): HTMLElement {
  const cells = [clockText(change.time), String(change.attempt), statusWord(change.status, words, change.reason)];
  const said = words.say(change.message || change.reason);
  return el("tr", {}, ...[...cells, said].map((text) => el("td", {}, text)));
}
