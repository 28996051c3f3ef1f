/** Texts in the reader's language; JupyterLab's TranslationBundle is one. `%1`, `%2` stand for the arguments. */

export interface Words {
  __(text: string, ...args: unknown[]): string;
  _n(one: string, many: string, n: number, ...args: unknown[]): string;
}

/** English as it stands in the sources, where no translator is near. */
export const english: Words = {
  __: (text, ...args) => filled(text, args),
  _n: (one, many, n, ...args) => filled(n === 1 ? one : many, [n, ...args]),
};

function filled(text: string, args: unknown[]): string {
  return text.replace(/%(\d)/g, (whole, place: string) => {
    const value = args[Number(place) - 1];
    return value === undefined ? whole : String(value);
  });
}
