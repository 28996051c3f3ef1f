/** Which runs have just ended, told once over all tabs of the browser. */

import { durationText } from "../figures";
import { clauseOf, elapsed, isSuspended } from "../sentences";
import { isTerminal, type RunView } from "../types";
import type { Words } from "../words";

const STORE = "slicelift:told-endings";
const KEPT = 200;
// of a run that this page never saw going on: only what ended a moment ago is news
const NEWS_SECONDS = 300;
const BEHIND_MILLISECONDS = 500;

export interface Ending {
  /** Of this attempt, in all tabs. */
  key: string;
  view: RunView;
}

export class Endings {
  private readonly active = new Set<string>();
  private readonly since = Date.now() / 1000;

  /** `behind`: somebody looks at another tab now, which shall tell first. */
  constructor(
    private readonly tell: (ending: Ending) => void,
    private readonly behind: () => boolean = () => false,
  ) {}

  /** A view from the stream or a list; the same one may come any number of times. */
  seen(view: RunView): void {
    const key = `${view.run_id}-${view.attempt}`;
    if (!isTerminal(view.status)) {
      this.active.add(key);
      return;
    }
    const ended = view.ended ?? 0;
    const fresh = ended > this.since && Date.now() / 1000 - ended < NEWS_SECONDS;
    if (!this.active.delete(key) && !fresh) return;
    void this.claim(key).then((mine) => mine && this.tell({ key, view }));
  }

  anyActive(): boolean {
    return this.active.size > 0;
  }

  /** True for one tab only. Without locks (an insecure page) two tabs may both tell, which is no harm. */
  private async claim(key: string): Promise<boolean> {
    if (this.behind()) await new Promise((resolve) => setTimeout(resolve, BEHIND_MILLISECONDS));
    if (!("locks" in navigator)) return claimed(key);
    return navigator.locks.request(STORE, () => claimed(key));
  }
}

/** `digits-ddp is done after 3 min 12 s`. */
export function endingText(view: RunView, words: Words): string {
  const took = durationText(elapsed(view), words);
  if (view.status === "FINISHED") return words.__("%1 is done after %2", view.name, took);
  if (isSuspended(view)) return words.__("%1 was suspended after %2", view.name, took);
  if (view.status === "KILLED") return words.__("%1 was cancelled after %2", view.name, took);
  const why = clauseOf(view.failure?.message || view.message, words);
  if (!why) return words.__("%1 failed after %2", view.name, took);
  return words.__("%1 failed after %2: %3", view.name, took, why);
}

function claimed(key: string): boolean {
  try {
    const told = JSON.parse(localStorage.getItem(STORE) ?? "[]") as string[];
    if (told.includes(key)) return false;
    localStorage.setItem(STORE, JSON.stringify([...told, key].slice(-KEPT)));
  } catch {
    // storage that is full or switched off: told in each tab rather than in none
  }
  return true;
}
