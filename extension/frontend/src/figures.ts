/** Figures for reading, as the command line prints them. */

import type { Words } from "./words";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes in binary units: `12 B`, `1.2 MiB`, `412 MiB`. */
export function sizeText(bytes: number): string {
  let [rest, step] = [bytes, 0];
  while (rest >= 1024 && step < UNITS.length - 1) [rest, step] = [rest / 1024, step + 1];
  return `${rest.toFixed(step === 0 || rest >= 100 ? 0 : 1)} ${UNITS[step]}`;
}

/** `0.3 s`, `12 s`, `3 min 12 s`, `1 h 02 min`. */
export function durationText(seconds: number, words: Words): string {
  if (seconds < 10) return words.__("%1 s", Math.max(seconds, 0).toFixed(1));
  const whole = Math.round(seconds);
  const [minutes, rest] = [Math.floor(whole / 60), whole % 60];
  if (!minutes) return words.__("%1 s", String(rest));
  if (minutes < 60) return words.__("%1 min %2 s", String(minutes), two(rest));
  return words.__("%1 h %2 min", String(Math.floor(minutes / 60)), two(minutes % 60));
}

/** How long since a Unix time, coarse: `just now`, `12 s ago`, `2 days ago`. */
export function agoText(moment: number, words: Words, now: number = Date.now() / 1000): string {
  const passed = now - moment;
  if (passed < 2) return words.__("just now");
  if (passed < 60) return words.__("%1 s ago", String(Math.round(passed)));
  if (passed < 3600) return words.__("%1 min ago", String(Math.floor(passed / 60)));
  if (passed < 2 * 86400) return words.__("%1 h ago", String(Math.floor(passed / 3600)));
  return words.__("%1 days ago", String(Math.floor(passed / 86400)));
}

/** Local time of day, with the date when it is not today. */
export function clockText(moment: number): string {
  const date = new Date(moment * 1000);
  const time = date.toLocaleTimeString([], { hour12: false });
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString()} ${time}`;
}

/** A metric's value: four significant digits, NaN and infinities as themselves. */
export function numberText(value: unknown): string {
  if (value === "Infinity" || value === Infinity) return "∞";
  if (value === "-Infinity" || value === -Infinity) return "-∞";
  const figure = Number(value);
  if (Number.isNaN(figure)) return "NaN";
  if (Number.isInteger(figure) && Math.abs(figure) < 1e6) return String(figure);
  return String(Number(figure.toPrecision(4)));
}

/** 0.639 -> `63 %`: never more than it was. */
export function percentText(fraction: number): string {
  return `${Math.floor(fraction * 100)} %`;
}

function two(number: number): string {
  return String(number).padStart(2, "0");
}
