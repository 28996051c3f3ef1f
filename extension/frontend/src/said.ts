/**
 * Sentences that Python made, found again by their shape and said in the reader's language.
 *
 * Findings, refusals, steps and what a job says of itself are written once, as f-strings of Python, and cross every
 * seam as English text. The catalogue keeps each of those f-strings, its values as `%1`, `%2`, below the context
 * `server`; tests/unit/frontend/test_sentences.py reads the f-strings out of the sources and fails for one that the
 * catalogue lacks. What fits no shape stays English.
 */

/** One language of ours as JupyterLab keeps it: text -> its forms. */
export type Catalogue = Readonly<Record<string, unknown>>;

/** The context of a gettext key, and the sign that divides it from the text. */
const CONTEXT = "server\u0004";
const LONGEST = 4000; // characters; nothing longer is a sentence of ours
const REMEMBERED = 500;
const DEEPEST = 4;

interface Shape {
  pattern: RegExp;
  form: string;
  /** Letters that are not a value: the more, the surer. A frame has none, and needs a value that is a sentence. */
  weight: number;
}

/** A function that says a sentence in the catalogue's language. Values that are sentences themselves are said, too. */
export function makeSay(catalogue: Catalogue): (text: string) => string {
  const shapes = Object.entries(catalogue).flatMap(([key, forms]) => shapeOf(key, forms));
  if (!shapes.length) return (text) => text;
  shapes.sort((one, other) => other.weight - one.weight);
  const known = new Map<string, string>();
  return (text) => {
    const found = known.get(text) ?? said(text, shapes) ?? text;
    if (known.size >= REMEMBERED) known.clear();
    known.set(text, found);
    return found;
  };
}

/** One sentence or several after each other; null when not even the first is known. */
function said(text: string, shapes: readonly Shape[], depth = DEEPEST): string | null {
  if (!text || text.length > LONGEST || !depth) return null;
  const whole = saidWhole(text, shapes, depth);
  if (whole !== null) return whole;
  for (const { index } of text.matchAll(/(?<=[.?]) /g)) {
    const first = saidWhole(text.slice(0, index), shapes, depth);
    const rest = text.slice(index + 1);
    if (first !== null) return first + (said(rest, shapes, depth) ?? ` ${rest}`);
  }
  return null;
}

function saidWhole(text: string, shapes: readonly Shape[], depth: number): string | null {
  for (const { pattern, form, weight } of shapes) {
    const values = pattern.exec(text);
    if (!values) continue;
    const inner = values.map((value, place) => (place ? said(value, shapes, depth - 1) : null));
    if (!weight && inner.every((value) => value === null)) continue;
    return form.replace(/%(\d)/g, (_, place: string) => inner[Number(place)] ?? values[Number(place)]);
  }
  return null;
}

function shapeOf(key: string, forms: unknown): Shape[] {
  const form: unknown = Array.isArray(forms) ? forms[0] : "";
  if (!key.startsWith(CONTEXT) || typeof form !== "string" || !form) return [];
  const literals = key.slice(CONTEXT.length).split(/%\d/);
  const pattern = new RegExp(`^${literals.map(escaped).join("([^]*?)")}$`);
  return [{ pattern, form, weight: literals.join("").replace(/[^A-Za-z]/g, "").length }];
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
}
