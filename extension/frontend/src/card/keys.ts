/** Which metrics a card draws first, what they are called, and in which unit their values read. */

import { numberText, percentText, sizeText } from "../figures";
import { MEMORY_KEYS, THROUGHPUT_KEYS, WAIT_KEY, userMetrics } from "../sentences";
import type { Figure } from "../types";
import type { Words } from "../words";

const CHARTS = 3;

/** Loss, throughput, peak memory; where one was not logged, the next key that was. At most three. */
export function chosenKeys(known: string[]): string[] {
  const own = userMetrics(known);
  const first = own.shift();
  const throughput = THROUGHPUT_KEYS.find((key) => known.includes(key));
  const memory = MEMORY_KEYS.find((key) => known.includes(key));
  const wanted = [first, throughput, memory].filter((key): key is string => key !== undefined);
  const rest = [...own, ...known.filter((key) => !own.includes(key) && !wanted.includes(key) && !isOfRank(key))];
  return [...wanted, ...rest].slice(0, CHARTS);
}

/** Metrics of ranks above 0 are in `latest` as `rank/3/loss`; they have no curve of their own here. */
export function isOfRank(key: string): boolean {
  return /^rank\/\d+\//.test(key);
}

/** The heading of a chart. Host memory is never called GPU memory. */
export function keyLabel(key: string, words: Words): string {
  switch (key) {
    case "throughput_samples_per_second":
      return words.__("throughput (samples)");
    case "throughput_steps_per_second":
      return words.__("throughput (steps)");
    case "step_time_seconds":
      return words.__("step time");
    case "peak_gpu_memory_bytes":
      return words.__("peak GPU memory");
    case "peak_host_memory_bytes":
      return words.__("peak host memory");
    case WAIT_KEY:
      return words.__("waiting for data");
    default:
      return key;
  }
}

/** A value of that metric with its unit. */
export function valueText(key: string, value: Figure, words: Words): string {
  if (typeof value !== "number") return numberText(value);
  if (key === WAIT_KEY && value >= 0 && value <= 1) return percentText(value);
  if (key.endsWith("_bytes")) return sizeText(value);
  if (key === "throughput_samples_per_second") return words.__("%1 samples/s", numberText(value));
  if (key === "throughput_steps_per_second") return words.__("%1 steps/s", numberText(value));
  if (key.endsWith("_seconds")) return words.__("%1 s", numberText(value));
  return numberText(value);
}
