/** The ranks of a gang, one small square each, with what is odd about them in words. */

import { el, memo } from "../elements";
import { agoText } from "../figures";
import { isTerminal, type Rank, type RunView } from "../types";
import type { Words } from "../words";

const SILENT_SECONDS = 30;
const SLOWER_SHARE = 0.1; // of the middle rank's steps

export interface Strip {
  node: HTMLElement;
  update(view: RunView): void;
  /** False where no log can be had: the squares are then no buttons to press. */
  allow(may: boolean): void;
}

/** `open(rank)` is called for the square that was pressed. */
export function makeStrip(words: Words, open: (rank: number) => void): Strip {
  const list = el("ul", { class: "sl-ranks", "aria-label": words.__("Ranks") });
  const remark = el("span", { class: "sl-remark" });
  const node = el("div", { class: "sl-strip", hidden: true });
  node.append(el("span", { class: "sl-dim" }, words.__("ranks")), list, remark);
  let view: RunView;
  let may = true;
  const settle = (): void => list.querySelectorAll("button").forEach((button) => (button.disabled = !may));
  const rebuild = memo(() => {
    list.replaceChildren(...view.ranks.map((row) => square(row, words, open)));
    settle();
  });
  return {
    node,
    allow(now) {
      may = now;
      settle();
    },
    update(newest) {
      view = newest;
      node.hidden = view.ranks.length === 0;
      rebuild(view.ranks.map((row) => row.rank).join());
      const odd = view.status === "RUNNING" ? oddRanks(view.ranks, words) : new Map<number, string>();
      view.ranks.forEach((row, index) => paint(list.children[index], row, { view, words, odd: odd.get(row.rank) }));
      const [first, ...others] = [...odd.values()];
      const more = others.length ? ` ${words._n("(and %1 more)", "(and %1 more)", others.length)}` : "";
      remark.textContent = first === undefined ? "" : first + more;
    },
  };
}

/** What a rank does, in one phrase. */
export function rankText(row: Rank, words: Words): string {
  const parts = [words.__("rank %1", row.rank), stateWord(row.state, words)];
  if (row.step !== null) parts.push(words.__("step %1", row.step));
  if (row.last_seen !== null) parts.push(words.__("last seen %1", agoText(row.last_seen, words)));
  return parts.filter(Boolean).join(", ");
}

/** Rank -> a sentence, for those that are silent or behind the middle of the others. */
export function oddRanks(ranks: Rank[], words: Words): Map<number, string> {
  const found = new Map<number, string>();
  const heard = ranks.filter((row) => row.last_seen !== null);
  const newest = Math.max(...heard.map((row) => row.last_seen ?? 0));
  const steps = heard.flatMap((row) => (row.step === null ? [] : [row.step])).sort((a, b) => a - b);
  const middle = steps[Math.floor(steps.length / 2)] ?? 0;
  for (const { rank, last_seen: seen, step } of heard) {
    const silent = newest - (seen ?? 0);
    const behind = middle - (step ?? middle);
    if (silent > SILENT_SECONDS) found.set(rank, words.__("rank %1 is silent for %2 s", rank, Math.round(silent)));
    else if (behind > Math.max(middle * SLOWER_SHARE, 1)) {
      const share = Math.round((100 * behind) / middle);
      found.set(rank, words.__("rank %1 is %2 % behind the rest (step %3)", rank, share, step));
    }
  }
  return found;
}

function square(row: Rank, words: Words, open: (rank: number) => void): HTMLElement {
  const button = el("button", { class: "sl-rank", type: "button", onclick: () => open(row.rank) });
  button.append(el("span", { "aria-hidden": "true" }, String(row.rank)));
  button.title = words.__("rank %1", row.rank);
  return el("li", {}, button);
}

function paint(item: Element, row: Rank, { view, words, odd }: { view: RunView; words: Words; odd?: string }): void {
  const button = item.firstElementChild as HTMLButtonElement;
  const text = odd ? `${rankText(row, words)}; ${odd}` : rankText(row, words);
  if (button.title !== text) {
    button.title = text;
    button.setAttribute("aria-label", `${text}. ${words.__("Show its log")}`);
  }
  const failed = view.failure?.rank === row.rank;
  button.classList.toggle("sl-is-bad", failed);
  button.classList.toggle("sl-is-odd", !failed && odd !== undefined);
  button.classList.toggle("sl-is-over", !failed && (row.state === "ended" || isTerminal(view.status)));
}

function stateWord(state: string, words: Words): string {
  if (state === "running") return words.__("running");
  if (state === "ended") return words.__("ended");
  return state;
}
