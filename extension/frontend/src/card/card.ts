/** The run card: what is going on with one run, and the next action beside it. */

import type { Api } from "../api";
import type { Disposer, Feed } from "../stream";
import type { Bundle } from "../types";
import type { Words } from "../words";
import { RunCard } from "./run";

/** What the surroundings of a card can do. */
export interface Host {
  openCell?(file: string, cell: number, line: number): void;
  /** The output as it should be saved (`GET card/<run>`), called once when the run has ended while it was shown. */
  saved?(bundle: object): void;
}

export interface CardParts {
  api: Api;
  feed: Feed;
  words: Words;
  host?: Host;
}

/** A run id is read first; a saved bundle is drawn at once and then brought up to date. */
export function mountCard(node: HTMLElement, run: string | Bundle, parts: CardParts): Disposer {
  const card = new RunCard(typeof run === "string" ? run : run.run_id, parts);
  node.replaceChildren(card.node);
  if (typeof run !== "string") card.showSaved(run);
  card.start();
  return card;
}
