/** Texts in the reader's language. `%1`, `%2` stand for the arguments. */

import { type Catalogue, makeSay } from "./said";

/** JupyterLab's TranslationBundle is one. */
export interface Texts {
  __(text: string, ...args: unknown[]): string;
  _n(one: string, many: string, n: number, ...args: unknown[]): string;
}

export interface Words extends Texts {
  /** A sentence that the server made in English, as the reader says it; as it is where that is not known. */
  say(text: string): string;
}

/** English as it stands in the sources, where no translator is near. */
export const english: Words = {
  __: (text, ...args) => filled(text, args),
  _n: (one, many, n, ...args) => filled(n === 1 ? one : many, [n, ...args]),
  say: (text) => text,
};

/** JupyterLab's texts, and the sentences of the same catalogue. */
export function makeWords(texts: Texts, catalogue: Catalogue): Words {
  return {
    __: texts.__.bind(texts),
    _n: texts._n.bind(texts),
    say: makeSay(catalogue),
  };
}

function filled(text: string, args: unknown[]): string {
  return text.replace(/%(\d)/g, (whole, place: string) => {
    const value = args[Number(place) - 1];
    return value === undefined ? whole : String(value);
  });
}
