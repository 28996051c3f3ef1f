/** What the user chose in the form, and what becomes of it: a request, and which field a refusal concerns. */

import type { Fault } from "../faults";
import type { Words } from "../words";
import type { Capacity, Parameter, Preset, PromoteRequest } from "./answers";

/** The form as typed. "" means what the preset or the notebook says. */
export interface Choice {
  preset: string;
  workers: string;
  gpus: string;
  slice: string;
  queue: string;
  parameters: Record<string, string>;
  name: string;
  modelName: string;
  secrets: string[];
}

export type Place =
  | "checked"
  | "code"
  | "data"
  | "packages"
  | "preset"
  | "size"
  | "queue"
  | "parameters"
  | "names"
  | "secrets"
  | "plan";

// what a request without a queue means
const DEFAULT_QUEUE = "default";

// by the beginning of the error's code; the first that fits
const PLACES: [RegExp, Place][] = [
  [/^presets?-/, "preset"],
  [/^(slice|workers|gang|gpus?|size|torch)-/, "size"],
  [/^queue-/, "queue"],
  [/^parameters?-/, "parameters"],
  [/^(model-name|name)-/, "names"],
  [/^secret-/, "secrets"],
  [/^(data|remote|dvc)-/, "data"],
  [/^(snapshot|git|project)-/, "code"],
  [/^(environment|package|python|kernel)-/, "packages"],
  [/^(notebook|preflight)-/, "checked"],
];

export function emptyChoice(): Choice {
  return {
    preset: "",
    workers: "",
    gpus: "",
    slice: "",
    queue: "",
    parameters: {},
    name: "",
    modelName: "",
    secrets: [],
  };
}

/** The preset in force: the one chosen, else the default. */
export function presetOf(choice: Choice, presets: readonly Preset[]): Preset | null {
  const chosen = presets.find((preset) => preset.name === choice.preset);
  return chosen ?? presets.find((preset) => preset.default) ?? presets[0] ?? null;
}

export function isForSlices(preset: Preset | null): boolean {
  return preset?.kind === "slice";
}

/** The slice in force with a preset for slices: the one chosen, else the first with a free one. */
export function sliceOf(choice: Choice, capacity: Capacity | null): string {
  const slices = capacity?.slices ?? [];
  const known = slices.find((item) => item.name === choice.slice);
  return known?.name ?? slices.find((item) => item.free > 0)?.name ?? slices[0]?.name ?? choice.slice;
}

/** The queue in force: the one chosen, else the preset's, the one called default, or the first that takes jobs. */
export function queueOf(choice: Choice, preset: Preset | null, queues: readonly string[]): string {
  const wishes = [choice.queue, preset?.queue ?? "", DEFAULT_QUEUE];
  return wishes.find((name) => queues.includes(name)) ?? queues[0] ?? DEFAULT_QUEUE;
}

/** The JSON form of the choice; only what differs from the preset and the notebook. */
export function requestOf(choice: Choice, preset: Preset | null, capacity: Capacity | null): PromoteRequest {
  const request: PromoteRequest = {};
  if (choice.preset) request.preset = choice.preset;
  if (isForSlices(preset)) {
    request.preset = preset?.name;
    request.slice = sliceOf(choice, capacity);
  } else {
    if (choice.workers.trim()) request.workers = Number(choice.workers);
    if (choice.gpus.trim()) request.gpus_per_worker = Number(choice.gpus);
  }
  const queue = choice.queue || queueOf(choice, preset, capacity?.queues ?? []);
  if (choice.queue || queue !== DEFAULT_QUEUE) request.queue = queue;
  if (Object.keys(choice.parameters).length) request.parameters = choice.parameters;
  if (choice.name.trim()) request.name = choice.name.trim();
  if (choice.modelName.trim()) request.model_name = choice.modelName.trim();
  if (choice.secrets.length) request.secrets = choice.secrets;
  return request;
}

/** The first thing typed that cannot be sent, in words; null when all can. */
export function faultOf(choice: Choice, preset: Preset | null, words: Words): Fault | null {
  if (isForSlices(preset)) return null;
  if (!isCount(choice.workers, 1)) {
    const hint = words.__("Type a number such as 2, or leave it empty for what the preset says.");
    return { code: "workers-typed", message: words.__("Workers must be a whole number from 1."), hint };
  }
  if (!isCount(choice.gpus, 0)) {
    const hint = words.__("Type a number such as 1, or 0 for CPU.");
    return { code: "gpus-typed", message: words.__("GPUs must be a whole number from 0."), hint };
  }
  return null;
}

/** Beside what a refusal is shown. */
export function placeOf(fault: Fault): Place {
  return PLACES.find(([pattern]) => pattern.test(fault.code))?.[1] ?? "plan";
}

/** A parameter's default as it is typed: text without its quotes, since overrides of text are taken as they are. */
export function shownDefault(parameter: Parameter): string {
  const quoted = /^(['"])(.*)\1$/.exec(parameter.default);
  return parameter.type === "str" && quoted && !quoted[2].includes("\\") ? quoted[2] : parameter.default;
}

function isCount(text: string, least: number): boolean {
  const typed = text.trim();
  return typed === "" || (/^\d{1,6}$/.test(typed) && Number(typed) >= least);
}
