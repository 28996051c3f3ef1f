/** Why a run failed, where in the notebook, and the traceback on demand. */

import { el, memo } from "../elements";
import { failureSentence, placeOf, reasonOf } from "../sentences";
import type { Failure, RunView } from "../types";
import type { Words } from "../words";
import type { Section } from "./outputs";

/** `jump` is null where nothing can open a cell: the place is then plain text. */
export function makeFailure(words: Words, jump: ((file: string, cell: number, line: number) => void) | null): Section {
  const node = el("div", { class: "sl-failure", hidden: true });
  let view: RunView;
  const redraw = memo(() => {
    const { failure } = view;
    const shown = view.status === "FAILED" && failure !== null;
    node.hidden = !shown;
    node.replaceChildren(...(shown ? content(failure, { notebook: view.spec.notebook, words, jump }) : []));
  });
  return {
    node,
    update(newest) {
      view = newest;
      redraw(newest.status, JSON.stringify(newest.failure));
    },
  };
}

interface Surroundings {
  notebook: string;
  words: Words;
  jump: ((file: string, cell: number, line: number) => void) | null;
}

function content(failure: Failure, { notebook, words, jump }: Surroundings): Node[] {
  const parts: Node[] = [el("p", {}, ...opening(failure, { notebook, words, jump }))];
  if (failure.source.trim()) parts.push(el("pre", { class: "sl-source" }, failure.source.trim()));
  if (failure.traceback.trim()) {
    const trace = el("pre", { class: "sl-log", tabindex: 0, "aria-label": words.__("Traceback") }, failure.traceback.trimEnd());
    parts.push(el("details", {}, el("summary", {}, words.__("Traceback")), trace));
  }
  return parts;
}

/** The sentence, with its place as a button. */
function opening(failure: Failure, { notebook, words, jump }: Surroundings): (Node | string)[] {
  const { cell, line, file } = failure;
  const sentence = failureSentence(failure, notebook, words);
  const place = placeOf(failure, notebook, words);
  const at = place ? sentence.lastIndexOf(place, sentence.length - reasonOf(failure, words).length) : -1;
  if (!jump || cell === null || at < 0) return [el("b", {}, sentence)];
  const go = () => jump(file ?? notebook, cell, line ?? 1);
  const button = el("button", { type: "button", class: "sl-link", onclick: go, title: words.__("Go to the cell") }, place);
  return [el("b", {}, sentence.slice(0, at)), button, el("b", {}, sentence.slice(at + place.length))];
}
