/** Sends one promotion until it is known what became of it; a repeat makes no second job. */

import type { Api } from "../api";
import { type Fault, faultFrom, isPassing, isRepeatable, Refusal } from "../faults";
import type { RunView } from "../types";
import type { Words } from "../words";
import type { PromoteLine, PromoteRequest, Step } from "./answers";

const PAUSES_SECONDS = [0.5, 1, 2, 4, 8];

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

async function once(
  promotion: Promotion,
  parts: { api: Api; words: Words; told: Told },
): Promise<RunView | null> {
  const { words } = parts;
  let view: RunView | null = null;
  let refused: Fault | null = null;
  const each = (line: PromoteLine): void => {
    if (line.step) parts.told.step(line.step);
    view = line.view ?? view;
    if (line.error) refused = { ...line.error, message: words.say(line.error.message), hint: words.say(line.error.hint) };
  };
  try {
    await parts.api.lines("promote", promotion, each);
  } catch (error) {
    if (!isPassing(error)) throw new Refusal(faultFrom(error, words));
  }
  const fault = refused as Fault | null;
  if (fault && !isRepeatable(fault.code)) throw new Refusal(fault);
  return view;
}
