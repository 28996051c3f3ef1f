/** What went wrong, for a person: in one line, or in a box beside what it concerns. */

import { ApiError } from "./api";
import { el, told } from "./elements";
import type { Words } from "./words";

// answers of a server or a proxy that is coming back
const PASSING = new Set([0, 502, 503, 504]);
const REPEATABLE = new Set(["worker-died", "launcher-starting"]);

/** What went wrong, in the form of every error of ours. */
export interface Fault {
  code: string;
  message: string;
  hint: string;
  detail?: unknown;
}

/** Thrown with a fault that is told already. */
export class Refusal extends Error {
  constructor(readonly fault: Fault) {
    super(fault.message);
  }
}

/** What went wrong and the way on, in one line. */
export function faultText(error: unknown): string {
  if (error instanceof ApiError) return oneLine(error);
  return error instanceof Error ? error.message : String(error);
}

export function oneLine({ message, hint }: Pick<Fault, "message" | "hint">): string {
  return [message, hint].filter(Boolean).join(" ");
}

/** Any error as a fault that can be shown. */
export function faultFrom(error: unknown, words: Words): Fault {
  if (error instanceof Refusal) return error.fault;
  if (error instanceof ApiError && error.message) {
    const { code, message, hint, detail } = error;
    return { code, message, hint, detail };
  }
  const hint = words.__("Check that JupyterLab still runs, then try again.");
  return { code: "connection-lost", message: words.__("The server did not answer."), hint };
}

/** Whether asking again in a moment may help. */
export function isPassing(error: unknown): boolean {
  return !(error instanceof ApiError) || PASSING.has(error.status) || isRepeatable(error.code);
}

export function isRepeatable(code: string): boolean {
  return REPEATABLE.has(code);
}

/** A refusal beside what it concerns: what was found, and the way on. */
export function faultBox(fault: Fault): HTMLElement {
  return el(
    "div",
    { class: "sl-fault", role: "alert", "data-code": fault.code },
    el("p", {}, ...told(fault.message)),
    fault.hint ? el("p", { class: "sl-dim" }, ...told(fault.hint)) : null,
  );
}
