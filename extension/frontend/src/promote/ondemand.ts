/** A long text that is shown when asked for, with a button that copies it. */

import { el } from "../elements";
import type { Words } from "../words";

const SPOKEN_MILLISECONDS = 2000;

/** A fold whose text is put into the page when it is first opened. */
export function onDemand(title: string, text: string, words: Words): HTMLElement {
  const pre = el("pre", { tabindex: 0, role: "region", "aria-label": title });
  const copy = el("button", { type: "button" }, words.__("Copy"));
  const fold = el("details", { class: "sl-fold" }, el("summary", {}, title), el("div", {}, copy), pre);
  fold.addEventListener("toggle", () => {
    if (fold.open && !pre.textContent) pre.textContent = text;
  });
  copy.addEventListener("click", () => void copied(copy, text, words));
  return fold;
}

async function copied(button: HTMLButtonElement, text: string, words: Words): Promise<void> {
  const done = await navigator.clipboard.writeText(text).then(
    () => true,
    () => false,
  );
  button.textContent = done ? words.__("Copied") : words.__("Not allowed: select and copy the text");
  setTimeout(() => (button.textContent = words.__("Copy")), SPOKEN_MILLISECONDS);
}
