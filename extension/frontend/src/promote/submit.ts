/** Sends one promotion until it is known what became of it; a repeat makes no second job. */

import type { Api } from "../api";
import { ApiError } from "../api";
import type { RunView } from "../types";
import type { Words } from "../words";
import type { Fault, PromoteLine, PromoteRequest, Step } from "./answers";

const PAUSES_SECONDS = [0.5, 1, 2, 4, 8];
// answers of a server or a proxy that is coming back
const PASSING = new Set([0, 502, 503, 504]);
const REPEATABLE = new Set(["worker-died", "launcher-starting"]);

export interface Promotion {
  path: string;
  request: PromoteRequest;
  promotion_id: string;
}

export interface Told {
  step(step: Step): void;
  /** The connection was lost; the same promotion is sent again after a pause. */
  lost(): void;
}

/** The accepted run. Throws a `Refusal` when the promotion was refused or nothing could be reached. */
export async function submitPromotion(
  promotion: Promotion,
  parts: { api: Api; words: Words; told: Told; signal: AbortSignal },
): Promise<RunView> {
  for (const pause of [...PAUSES_SECONDS, null]) {
    const view = await once(promotion, parts);
    if (view) return view;
    parts.signal.throwIfAborted();
    if (pause !== null) {
      parts.told.lost();
      await new Promise((resolve) => setTimeout(resolve, pause * 1000));
    }
  }
  throw new Refusal({
    code: "connection-lost",
    message: parts.words.__("The connection was lost before the answer came."),
    hint: parts.words.__("Press Submit again: the same promotion makes one job only."),
  });
}

export class Refusal extends Error {
  constructor(readonly fault: Fault) {
    super(fault.message);
  }
}

/** Any error as a fault that can be shown. */
export function faultFrom(error: unknown, words: Words): Fault {
  if (error instanceof Refusal) return error.fault;
  if (error instanceof ApiError && error.message) {
    return {
      code: error.code,
      message: error.message,
      hint: error.hint,
      detail: error.detail as Fault["detail"],
    };
  }
  const hint = words.__("Check that JupyterLab still runs, then try again.");
  return { code: "connection-lost", message: words.__("The server did not answer."), hint };
}

/** Whether asking again in a moment may help. */
export function isPassing(error: unknown): boolean {
  return !(error instanceof ApiError) || PASSING.has(error.status) || REPEATABLE.has(error.code);
}

async function once(
  promotion: Promotion,
  parts: { api: Api; words: Words; told: Told },
): Promise<RunView | null> {
  let view: RunView | null = null;
  let refused: Fault | null = null;
  const each = (line: PromoteLine): void => {
    if (line.step) parts.told.step(line.step);
    view = line.view ?? view;
    refused = line.error ?? refused;
  };
  try {
    await parts.api.lines("promote", promotion, each);
  } catch (error) {
    if (!isPassing(error)) throw new Refusal(faultFrom(error, parts.words));
  }
  const fault = refused as Fault | null;
  if (fault && !REPEATABLE.has(fault.code)) throw new Refusal(fault);
  return view;
}
