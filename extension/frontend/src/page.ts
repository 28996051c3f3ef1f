/** What all views of one page share: one way to the server, one event stream, one language. */

import type { Api } from "./api";
import type { Feed } from "./stream";
import type { Words } from "./words";

export interface Page {
  api: Api;
  feed: Feed;
  words: Words;
}

type Place = typeof globalThis & { slicelift?: Page };

/** Makes it known to the widgets of this page, which come in a bundle of their own. */
export function sharePage(page: Page): void {
  (globalThis as Place).slicelift = page;
}

/** What JupyterLab's extension or an earlier widget shares; else what `make` makes, from then on for all. */
export function sharedPage(make: () => Page | null): Page | null {
  const place = globalThis as Place;
  place.slicelift ??= make() ?? undefined;
  return place.slicelift ?? null;
}
