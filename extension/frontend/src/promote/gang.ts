/** The form: preset, size, queue, parameters, names, secrets. Writes into the choice and tells when it changed. */

import { type Child, el } from "../elements";
import { type Fault, faultBox } from "../faults";
import type { Words } from "../words";
import type { Capacity, Context, Parameter, Preset } from "./answers";
import { type Choice, isForSlices, type Place, placeOf, presetOf, queueOf, shownDefault, sliceOf } from "./choice";
import { freeText, poolOf } from "./travels";

export interface FormParts {
  choice: Choice;
  context: Context | null;
  capacity: Capacity | null;
  parameters: readonly Parameter[];
  notebook: string;
  words: Words;
  /** Something was chosen; with `anew` the form itself looks different now. */
  chosen(anew?: boolean): void;
  secrets(): Promise<string[]>;
}

/** The whole form. Refusals go into the `data-place` slots by `showFault`. */
export function gangForm(parts: FormParts): HTMLElement {
  const { words, context } = parts;
  const preset = presetOf(parts.choice, context?.presets ?? []);
  const form = el(
    "form",
    { class: "sl-form", onsubmit: (event) => event.preventDefault() },
    field(words.__("preset"), "preset", presetSelect(parts, preset)),
    isForSlices(preset) ? sliceField(parts) : sizeField(parts, preset),
    field(words.__("queue"), "queue", queueSelect(parts, preset)),
    ...parameterFields(parts),
    namesFold(parts),
    secretsFold(parts),
  );
  return form;
}

/** Put a refusal beside the field it concerns; true when the form has such a field. */
export function showFault(form: HTMLElement, fault: Fault | null): boolean {
  form.querySelectorAll("[data-place]").forEach((slot) => slot.replaceChildren());
  const slot = fault && form.querySelector(`[data-place="${placeOf(fault)}"]`);
  if (!fault || !slot) return false;
  const fold = slot.closest("details");
  if (fold) fold.open = true;
  slot.replaceChildren(faultBox(fault));
  return true;
}

function field(label: string, place: Place, ...controls: Child[]): HTMLElement {
  return el(
    "div",
    { class: "sl-field" },
    el("label", { class: "sl-label" }, el("span", {}, label), ...controls),
    el("div", { "data-place": place }),
  );
}

function presetSelect(parts: FormParts, preset: Preset | null): HTMLElement {
  const options = (parts.context?.presets ?? []).map((item) =>
    el("option", { value: item.name, selected: item.name === preset?.name }, parts.words.say(item.display_name) || item.name),
  );
  const select = el("select", { name: "preset", title: parts.words.say(preset?.description ?? "") }, ...options);
  select.addEventListener("change", () => {
    Object.assign(parts.choice, { preset: select.value, workers: "", gpus: "", slice: "" });
    parts.chosen(true);
  });
  select.disabled = options.length === 0;
  return select;
}

function sizeField(parts: FormParts, preset: Preset | null): HTMLElement {
  const { words, choice, capacity } = parts;
  const count = (name: "workers" | "gpus", label: string, least: number, standard: number): HTMLElement => {
    const input = el("input", {
      type: "number",
      min: least,
      name,
      "aria-label": label,
      value: choice[name] || standard,
      class: "sl-count",
    });
    input.addEventListener("input", () => {
      choice[name] = input.value.trim() || (input.validity.badInput ? "?" : "");
      free.textContent = sizeFree(parts, preset);
      parts.chosen();
    });
    return input;
  };
  const free = el("span", { class: "sl-dim" }, capacity ? sizeFree(parts, preset) : "");
  return el(
    "div",
    { class: "sl-field", role: "group", "aria-label": words.__("workers × GPUs") },
    el(
      "div",
      { class: "sl-label" },
      el("span", {}, words.__("workers × GPUs")),
      el(
        "span",
        { class: "sl-pair" },
        count("workers", words.__("workers"), 1, preset?.workers ?? 1),
        " × ",
        count("gpus", words.__("GPUs per worker"), 0, preset?.gpus_per_worker ?? 0),
        free,
      ),
    ),
    el("div", { "data-place": "size" }),
  );
}

function sizeFree(parts: FormParts, preset: Preset | null): string {
  if (!parts.capacity) return "";
  const gpus = Number(parts.choice.gpus || preset?.gpus_per_worker || 0);
  return freeText(poolOf({ workers: 1, gpus_per_worker: gpus, slice: null }, parts.capacity), parts.words);
}

function sliceField(parts: FormParts): HTMLElement {
  const { words, choice, capacity } = parts;
  const chosen = sliceOf(choice, capacity);
  const options = (capacity?.slices ?? []).map((item) => {
    const simulated = item.simulated ? ` (${words.__("simulated")})` : "";
    const free = words.__("%1 of %2 free", item.free, item.total);
    return el(
      "option",
      { value: item.name, selected: item.name === chosen },
      `${item.name}${simulated}: ${free}`,
    );
  });
  if (!options.length) {
    const none = el("span", { class: "sl-dim" }, words.__("There is no slice here; choose another preset."));
    return field(words.__("slice"), "size", none);
  }
  const select = el("select", { name: "slice" }, ...options);
  select.addEventListener("change", () => {
    choice.slice = select.value;
    parts.chosen();
  });
  return field(words.__("slice"), "size", select);
}

function queueSelect(parts: FormParts, preset: Preset | null): HTMLElement {
  const { choice, context, capacity } = parts;
  const queues = context?.queues.length ? context.queues : (capacity?.queues ?? ["default"]);
  const chosen = queueOf(choice, preset, queues);
  const options = queues.map((name) => el("option", { value: name, selected: name === chosen }, name));
  const select = el("select", { name: "queue" }, ...options);
  select.addEventListener("change", () => {
    choice.queue = select.value;
    parts.chosen();
  });
  return select;
}

function parameterFields(parts: FormParts): HTMLElement[] {
  if (!parts.parameters.length) return [];
  const { words } = parts;
  return [
    el(
      "fieldset",
      { class: "sl-parameters" },
      el("legend", {}, words.__("parameters")),
      ...parts.parameters.map((parameter) => parameterField(parts, parameter)),
      el("div", { "data-place": "parameters" }),
    ),
  ];
}

function parameterField(parts: FormParts, parameter: Parameter): HTMLElement {
  const { words, choice } = parts;
  const standard = shownDefault(parameter);
  const value = choice.parameters[parameter.name] ?? standard;
  const input = el("input", {
    type: "text",
    name: `parameter-${parameter.name}`,
    value,
    spellcheck: "false",
  });
  const reset = el("button", { type: "button", class: "sl-link" }, words.__("reset"));
  reset.setAttribute("aria-label", words.__("Reset %1 to %2", parameter.name, standard));
  const mark = el("span", { class: "sl-mark" }, el("span", {}, words.__("changed")), " ", reset);
  const note = (): void => {
    const changed = input.value !== standard;
    if (changed) choice.parameters[parameter.name] = input.value;
    else delete choice.parameters[parameter.name];
    mark.hidden = !changed;
    row.classList.toggle("sl-changed", changed);
  };
  input.addEventListener("input", () => (note(), parts.chosen()));
  reset.addEventListener("click", () => {
    input.value = standard;
    note();
    parts.chosen();
    input.focus();
  });
  const row = el(
    "div",
    { class: "sl-parameter", title: parameter.type },
    el("label", {}, el("code", {}, `${parameter.name} =`), input),
    mark,
  );
  note();
  return row;
}

function namesFold(parts: FormParts): HTMLElement {
  const { words, choice } = parts;
  const input = (key: "name" | "modelName", placeholder: string): HTMLInputElement => {
    const node = el("input", {
      type: "text",
      name: key,
      value: choice[key],
      placeholder,
      spellcheck: "false",
    });
    node.addEventListener("input", () => {
      choice[key] = node.value;
      parts.chosen();
    });
    return node;
  };
  return el(
    "details",
    { class: "sl-fold", open: Boolean(choice.name || choice.modelName) },
    el("summary", {}, words.__("Names")),
    field(words.__("name of the job"), "names", input("name", parts.notebook)),
    field(words.__("name of the model"), "names", input("modelName", parts.notebook)),
  );
}

function secretsFold(parts: FormParts): HTMLElement {
  const { words, choice } = parts;
  const body = el("div", { class: "sl-secrets" });
  const fold = el(
    "details",
    { class: "sl-fold" },
    el("summary", {}, words.__("Secrets")),
    body,
    el("div", { "data-place": "secrets" }),
  );
  const fill = async (): Promise<void> => {
    body.replaceChildren(words.__("Asking for the names…"));
    const kept = await parts.secrets().catch(() => null);
    // a chosen one that is gone stays in sight, so that it can be left out
    const names = [...new Set([...(kept ?? []), ...choice.secrets])];
    if (kept === null) body.replaceChildren(words.__("The names could not be read."));
    else if (!names.length)
      body.replaceChildren(words.__("None is kept. In a terminal: %1", "slicelift secrets set NAME"));
    else body.replaceChildren(...names.map((name) => secretBox(parts, name)));
  };
  fold.addEventListener("toggle", () => fold.open && void fill());
  if (choice.secrets.length) fold.open = true;
  return fold;
}

function secretBox(parts: FormParts, name: string): HTMLElement {
  const { choice } = parts;
  const box = el("input", { type: "checkbox", checked: choice.secrets.includes(name) });
  box.addEventListener("change", () => {
    choice.secrets = choice.secrets.filter((item) => item !== name);
    if (box.checked) choice.secrets = [...choice.secrets, name].sort();
    parts.chosen();
  });
  return el("label", {}, box, " ", el("code", {}, name));
}
