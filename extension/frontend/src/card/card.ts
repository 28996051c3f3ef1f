/** The run card: what is going on with one run, and the next action beside it. */

import type { Page } from "../page";
import type { Disposer } from "../stream";
import type { Bundle, RunView } from "../types";
import { RunCard } from "./run";

/** What the surroundings of a card can do. */
export interface Host {
  openCell?(file: string, cell: number, line: number): void;
  /** Told of every view: what the run is called. */
  named?(view: RunView): void;
  /** The output as it should be saved (`GET card/<run>`), called once when the run has ended while it was shown. */
  saved?(bundle: object): void;
}

export interface CardParts extends Page {
  host?: Host;
}

/** A run id is read first; a saved bundle, or a view that the page has just got, is drawn at once and kept up to date. */
export function mountCard(node: HTMLElement, run: string | Bundle | RunView, parts: CardParts): Disposer {
  const card = new RunCard(typeof run === "string" ? run : run.run_id, parts);
  node.replaceChildren(card.node);
  if (typeof run === "string") card.start();
  else if ("view" in run) card.startSaved(run);
  else card.startFresh(run);
  return card;
}

/** Where no server is in reach: a saved bundle as it stands, for good. */
export function mountStill(node: HTMLElement, run: Bundle, parts: CardParts): Disposer {
  const card = new RunCard(run.run_id, parts);
  node.replaceChildren(card.node);
  card.showStill(run);
  return card;
}
