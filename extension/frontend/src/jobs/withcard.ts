/** The list of jobs as an output: below it the card of the run that was opened last. */

import { type CardParts, mountCard } from "../card/card";
import { keepKeys } from "../elements";
import type { Disposer } from "../stream";
import type { RunView } from "../types";
import { mountJobs } from "./list";

export function mountJobsWithCard(node: HTMLElement, parts: CardParts): Disposer {
  const [list, place] = [document.createElement("div"), document.createElement("div")];
  node.replaceChildren(list, place);
  keepKeys(list);
  let card: Disposer | null = null;
  const openRun = (view: RunView): void => {
    card?.dispose();
    card = mountCard(place, view, parts);
  };
  const jobs = mountJobs(list, { ...parts, openRun });
  return {
    dispose: () => {
      jobs.dispose();
      card?.dispose();
    },
  };
}
