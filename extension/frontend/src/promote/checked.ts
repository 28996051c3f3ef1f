/** The findings of the preflight: worst first, each with its place to jump to. */

import { el, told } from "../elements";
import { placeText } from "../sentences";
import type { Words } from "../words";
import type { FindingRow } from "./answers";

const ORDER = { error: 0, warning: 1, note: 2 };
const NOTES_SHOWN = 3;

export interface Jump {
  (cell: number, line: number): void;
}

/** The list, with many notes folded away; a sentence where there is nothing. */
export function findingList(findings: readonly FindingRow[], words: Words, jump: Jump): HTMLElement {
  if (!findings.length) return el("p", { class: "sl-dim" }, words.__("Nothing to mend."));
  const sorted = [...findings].sort(byWeight);
  const notes = sorted.filter((row) => row.severity === "note");
  const folded = notes.length > NOTES_SHOWN ? new Set(notes) : new Set<FindingRow>();
  const rows = (of: FindingRow[]): HTMLElement =>
    el("ul", { class: "sl-findings" }, ...of.map((row) => findingItem(row, words, jump)));
  const shown = rows(sorted.filter((row) => !folded.has(row)));
  if (!folded.size) return shown;
  const summary = el("summary", {}, words._n("%1 note", "%1 notes", folded.size));
  return el("div", {}, shown, el("details", { class: "sl-fold" }, summary, rows([...folded])));
}

/** `2 errors, 1 warning`; empty when there is nothing. */
export function counted(findings: readonly FindingRow[], words: Words): string {
  const count = (severity: string): number => findings.filter((row) => row.severity === severity).length;
  const [errors, warnings, notes] = [count("error"), count("warning"), count("note")];
  return [
    errors && words._n("%1 error", "%1 errors", errors),
    warnings && words._n("%1 warning", "%1 warnings", warnings),
    notes && words._n("%1 note", "%1 notes", notes),
  ]
    .filter(Boolean)
    .join(", ");
}

function findingItem(row: FindingRow, words: Words, jump: Jump): HTMLElement {
  return el(
    "li",
    { class: `sl-finding sl-${row.severity}`, "data-code": row.code },
    el("span", { class: "sl-severity" }, severityWord(row.severity, words)),
    el(
      "div",
      { class: "sl-what" },
      place(row, words, jump),
      " ",
      el("span", {}, ...told(words.say(row.message))),
      row.source ? el("code", { class: "sl-source" }, row.source.trim()) : null,
      row.fix ? el("p", { class: "sl-dim sl-fix" }, ...told(words.say(row.fix))) : null,
    ),
  );
}

function place(row: FindingRow, words: Words, jump: Jump): HTMLElement | null {
  if (row.cell === null) return row.file ? el("code", {}, row.file) : null;
  const { cell, line, file } = row;
  const text = placeText({ cell, line, file }, words);
  if (file) return el("span", { class: "sl-place" }, text);
  const go = (): void => jump(cell, line ?? 1);
  return el("button", { class: "sl-link", type: "button", onclick: go }, text);
}

function severityWord(severity: FindingRow["severity"], words: Words): string {
  if (severity === "error") return words.__("error");
  return severity === "warning" ? words.__("warning") : words.__("note");
}

function byWeight(one: FindingRow, other: FindingRow): number {
  const weight = ORDER[one.severity] - ORDER[other.severity];
  return weight || (one.cell ?? -1) - (other.cell ?? -1) || (one.line ?? 0) - (other.line ?? 0);
}
