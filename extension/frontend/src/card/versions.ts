/** Registered versions of a run: their aliases, who moved them last, and a form that sets one. */

import type { Api } from "../api";
import { el, memo } from "../elements";
import { faultBox, faultFrom } from "../faults";
import { agoText, clockText } from "../figures";
import type { AliasChange, ModelVersion, RunView } from "../types";
import type { Words } from "../words";
import type { Section } from "./outputs";

const USUAL = ["candidate", "champion"];

interface Parts {
  api: Api;
  words: Words;
}

export function makeVersions(parts: Parts): Section {
  const node = el("div", { class: "sl-versions", hidden: true });
  let view: RunView;
  const redraw = memo(() => {
    const at = [...node.children].findIndex((row) => row.contains(document.activeElement));
    node.hidden = view.models.length === 0;
    node.replaceChildren(...view.models.map((model) => versionRow(model, parts)));
    if (at >= 0) openerIn(node.children[at])?.focus();
  });
  return {
    node,
    update(newest) {
      view = newest;
      redraw(JSON.stringify(newest.models));
    },
  };
}

function versionRow(model: ModelVersion, parts: Parts): HTMLElement {
  const { words } = parts;
  const row = el("div", { class: "sl-version" });
  row.append(el("b", {}, words.__("%1 version %2", model.name, model.version)));
  row.append(...model.aliases.map((alias) => el("span", { class: "sl-pill" }, `@${alias}`)));
  const replace = (fresh: ModelVersion): void => {
    const next = versionRow(fresh, parts);
    const focused = row.contains(document.activeElement);
    row.replaceWith(next);
    if (focused) openerIn(next)?.focus();
  };
  row.append(aliasForm(model, parts, replace));
  const changes = model.alias_changes ?? [];
  const lines = changes.map((change) => changeLine(change, model, words));
  if (lines.length) row.append(el("ul", { class: "sl-changes sl-dim" }, ...lines));
  return row;
}

function changeLine(change: AliasChange, model: ModelVersion, words: Words): HTMLElement {
  const when = agoText(change.time, words);
  const item = el("li", { title: clockText(change.time) });
  if (change.after !== model.version) {
    item.textContent = words.__("@%1 moved on to version %2, by %3, %4", change.alias, change.after, change.who, when);
  } else if (change.before === null || change.before === change.after) {
    item.textContent = words.__("@%1 set by %2, %3", change.alias, change.who, when);
  } else {
    item.textContent = words.__("@%1 set by %2, %3; before it was version %4", change.alias, change.who, when, change.before);
  }
  return item;
}

/** A button that opens a field with the usual name that is still free; Enter or Set sends it. */
function aliasForm(model: ModelVersion, parts: Parts, done: (fresh: ModelVersion) => void): HTMLElement {
  const { words } = parts;
  const said = el("div", { class: "sl-alias-fault" });
  const free = USUAL.find((name) => !model.aliases.includes(name)) ?? "";
  const field = el("input", { value: free, size: 12, "aria-label": words.__("Alias"), required: true });
  const set = el("button", { type: "submit", class: "sl-main" }, words.__("Set"));
  const give = el("button", { type: "button" }, words.__("Not now"));
  const form = el("form", { class: "sl-alias", hidden: true }, field, set, give);
  const label = words.__("Set an alias of %1 version %2", model.name, model.version);
  const open = el("button", { type: "button", class: "sl-opener", "aria-label": label }, words.__("Set alias…"));
  const show = (on: boolean) => {
    form.hidden = !on;
    open.hidden = on;
    (on ? field : open).focus();
    if (on) field.select();
  };
  open.addEventListener("click", () => show(true));
  give.addEventListener("click", () => show(false));
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") show(false);
    if (event.key !== "Enter" || event.target !== field) return;
    event.preventDefault(); // inside an output of JupyterLab the browser's own submission does not come
    form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (form.ariaBusy === "true") return; // not `disabled`: the focus would be lost
    form.ariaBusy = "true";
    said.replaceChildren();
    sendAlias(model, field.value.trim().replace(/^@/, ""), parts)
      .then(done, (error: unknown) => said.replaceChildren(faultBox(faultFrom(error, words))))
      .finally(() => (form.ariaBusy = null));
  });
  return el("span", { class: "sl-alias-box" }, open, form, said);
}

/** The button of a row that opens its form. */
function openerIn(row: Element): HTMLElement | null {
  return row.querySelector(".sl-opener");
}

async function sendAlias(model: ModelVersion, alias: string, { api }: Parts): Promise<ModelVersion> {
  const path = `api/models/${encodeURIComponent(model.name)}/aliases/${encodeURIComponent(alias)}`;
  return api.post<ModelVersion>(path, { version: model.version });
}
