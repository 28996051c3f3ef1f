/** Elements by name: data goes in as text only, never as HTML. */

type Attribute = string | number | boolean | null | undefined | ((event: Event) => void);
export type Child = Node | string | null | false;

/** `el("button", { class: "sl-main", onclick: f, disabled: true }, "Submit")`. False and null leave an attribute out. */
export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, Attribute> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child): child is Node | string => child !== null && child !== false));
  return node;
}

/**
 * Keys pressed in `node` are ours: a notebook in command mode would take Enter, Space and single letters from our
 * buttons. Those with Ctrl or Cmd stay the page's (Ctrl+S saves), but for Enter, which would run the cell, and in a
 * field but for saving: undo, say, is the field's own there.
 */
export function keepKeys(node: HTMLElement): void {
  node.addEventListener("keydown", (event) => {
    const { key, target } = event;
    const accelerated = event.ctrlKey || event.metaKey;
    const inField = target instanceof HTMLInputElement || target instanceof HTMLSelectElement;
    const isTheirs = accelerated && (inField ? key.toLowerCase() === "s" : key !== "Enter");
    if (!isTheirs) event.stopPropagation();
  });
}

/** Text in which `backticks` are shown as code. */
export function told(text: string): (Node | string)[] {
  return text.split("`").map((piece, index) => (index % 2 ? el("code", {}, piece) : piece));
}

/** What a reader hears again only when it differs. */
export function setText(node: HTMLElement, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

/** Redraws only when one of the values differs from last time, so that focus and open details stay. */
export function memo(draw: () => void): (...values: unknown[]) => void {
  let last: unknown[] | null = null;
  return (...values) => {
    if (last && last.length === values.length && last.every((value, index) => value === values[index]))
      return;
    last = values;
    draw();
  };
}
