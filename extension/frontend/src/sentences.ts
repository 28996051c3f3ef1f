/** What is going on with a run: the sentences of slicelift/sentences.py, which a test compares with these. */

import { durationText, numberText } from "./figures";
import type { Failure, RunView, Status } from "./types";
import type { Words } from "./words";

export const THROUGHPUT_KEYS = ["throughput_samples_per_second", "throughput_steps_per_second", "step_time_seconds"];
export const MEMORY_KEYS = ["peak_gpu_memory_bytes", "peak_host_memory_bytes"];
const AUTOMATIC = [...THROUGHPUT_KEYS, ...MEMORY_KEYS];

/** One word for a status. */
export function statusWord(status: Status, words: Words): string {
  switch (status) {
    case "WAITING":
      return words.__("Waiting");
    case "STARTING":
      return words.__("Starting");
    case "RUNNING":
      return words.__("Running");
    case "CANCELLING":
      return words.__("Cancelling");
    case "FINISHED":
      return words.__("Done");
    case "FAILED":
      return words.__("Failed");
    case "KILLED":
      return words.__("Cancelled");
    default:
      return words.__("Unknown");
  }
}

/** The class that gives the colour: `sl-is-run`, `sl-is-wait`, `sl-is-ok`, `sl-is-bad`, `sl-is-off`. */
export function statusClass(status: Status): string {
  if (status === "RUNNING") return "sl-is-run";
  if (status === "FINISHED") return "sl-is-ok";
  if (status === "FAILED") return "sl-is-bad";
  return status === "KILLED" || status === "UNKNOWN" ? "sl-is-off" : "sl-is-wait";
}

/** One sentence, without a full stop when it goes on. */
export function sentence(view: RunView, words: Words): string {
  const clause = clauseOf(view.message, words);
  switch (view.status) {
    case "WAITING":
      return waiting(view, words);
    case "STARTING":
      return words.__("Starting: %1", clause || words.__("preparing the processes"));
    case "RUNNING":
      return running(view, words);
    case "CANCELLING":
      return words.__("Cancelling: %1", clause || words.__("ending every process"));
    case "FINISHED":
      return finished(view, words);
    case "FAILED":
      if (view.failure) return failureSentence(view.failure, view.spec.notebook, words);
      return words.__("Failed: %1", clause || words.say(view.reason) || words.__("no reason is known"));
    case "KILLED":
      return words.__("Cancelled: %1", clause || words.say(view.reason) || words.__("no reason is known"));
    default:
      return unknown(view, words);
  }
}

/** What is said beside the sentence: what is still on its way, what is not shown, what MLflow does not take. */
export function remarks(view: RunView, words: Words): string[] {
  const found: string[] = [];
  if (["RUNNING", "FINISHED"].includes(view.status) && view.message) found.push(clauseOf(view.message, words));
  const over = ["FINISHED", "FAILED", "KILLED"].includes(view.status);
  if (over && view.phase === "delivering") found.push(words.__("Still delivering logs and outputs"));
  found.push(...leftOut(view, words));
  const why = clauseOf(view.tracker_message ?? "", words);
  if (why) found.push(words.__("MLflow does not take this run, and is asked again: %1", why));
  return found;
}

/** What is counted without a reason was told by an agent that names none: its disk was full. */
function leftOut(view: RunView, words: Words): string[] {
  const by = view.dropped_by ?? {};
  const named = Object.values(by).reduce((sum, count) => sum + count, 0);
  const thinned = view.dropped_points - named + (by["spool-full"] ?? 0);
  const [hidden, long, odd] = [by["too-many-names"] ?? 0, by["name-too-long"] ?? 0, by["not-understood"] ?? 0];
  const kept = Object.keys(view.latest).length;
  const found: string[] = [];
  if (thinned) found.push(words.__("%1 logged points were thinned out: the spool was full", thinned));
  if (hidden) found.push(words.__("%1 logged points of names beyond the first %2 are not shown", hidden, kept));
  if (long) found.push(words.__("%1 logged points are not shown: their name is too long", long));
  if (odd) found.push(words.__("%1 logged points could not be understood", odd));
  return found;
}

/** `Rank 1 failed in cell 5, line 2: ValueError: bad`; as much of it as is known. */
export function failureSentence(failure: Failure, notebook: string, words: Words): string {
  const what = reasonOf(failure, words);
  if (isWhole(failure)) return what;
  const place = placeOf(failure, notebook, words);
  const who = failure.rank === null ? words.__("The job") : words.__("Rank %1", failure.rank);
  return place ? words.__("%1 failed in %2: %3", who, place, what) : words.__("%1 failed: %2", who, what);
}

/** `cell 5, line 2`, with the file where it is not the promoted notebook; empty when no cell is known. */
export function placeOf(failure: Failure, notebook: string, words: Words): string {
  const { cell, line, file } = failure;
  if (cell === null) return "";
  return placeText({ cell, line, file: file === notebook ? null : file }, words);
}

/**
 * `cell 5, line 2 of other.ipynb`: a place for a person, who counts cells from 1, as JupyterLab's status bar does.
 * `cell` counts from 0, as in every field of ours.
 */
export function placeText(at: { cell: number; line: number | null; file: string | null }, words: Words): string {
  const [cell, { line, file }] = [at.cell + 1, at];
  const place = line === null ? words.__("cell %1", cell) : words.__("cell %1, line %2", cell, line);
  return file ? words.__("%1 of %2", place, file) : place;
}

/** What was raised, without the rank in front of it; the user's own words stay as they are. */
export function reasonOf(failure: Failure, words: Words): string {
  const message = failure.message.replace(`${subjectOf(failure)} raised `, "");
  const { exception } = failure;
  if (isWhole(failure) || !exception) return clauseOf(message, words);
  const what = firstLine(message);
  if (what.startsWith(exception)) return what;
  return what ? `${exception}: ${what}` : exception;
}

/** The keys that the notebook logged, a loss first; ours (step time, throughput, memory) and other ranks' left out. */
export function userMetrics(keys: string[]): string[] {
  const own = keys.filter((key) => !AUTOMATIC.includes(key) && !/^(system|rank\/\d+)\//.test(key));
  const weight = (key: string) => (key.includes("loss") ? 0 : 1);
  return own.sort((a, b) => weight(a) - weight(b) || (a < b ? -1 : 1));
}

/** Seconds from start (or submit) to end (or now). */
export function elapsed(view: RunView, now: number = Date.now() / 1000): number {
  return (view.ended ?? now) - (view.started ?? view.created);
}

/** The first line of a message of ours, without the full stop that our sentence does not have. */
export function clauseOf(message: string, words: Words): string {
  const [line] = message.trim().split("\n");
  return words.say(line).replace(/[.。]+$/, "");
}

/** Python's name of what failed, as it begins a failure's message. */
function subjectOf(failure: Failure): string {
  return failure.rank === null ? "The job" : `Rank ${failure.rank}`;
}

/** `Rank 1 was killed by ...`: the message is the whole sentence. */
function isWhole(failure: Failure): boolean {
  const subject = subjectOf(failure);
  return failure.message.startsWith(`${subject} `) && !failure.message.startsWith(`${subject} raised `);
}

function firstLine(message: string): string {
  return message.trim().split("\n")[0].replace(/\.+$/, "");
}

function waiting(view: RunView, words: Words): string {
  const ahead = (view.position ?? 1) - 1;
  const place = ahead === 0 ? words.__("next in line") : words._n("%1 job ahead", "%1 jobs ahead", ahead);
  const clause = clauseOf(view.message, words);
  return clause ? words.__("Waiting: %1; %2", place, clause) : words.__("Waiting: %1", place);
}

function running(view: RunView, words: Words): string {
  const steps = Object.values(view.latest).map(([step]) => step);
  if (steps.length === 0) return words.__("Running: no step logged yet");
  const step = Math.max(...steps);
  const [first] = userMetrics(Object.keys(view.latest));
  if (first === undefined) return words.__("Running: step %1", step);
  return words.__("Running: step %1, %2 %3", step, first, numberText(view.latest[first][1]));
}

function finished(view: RunView, words: Words): string {
  const time = durationText(elapsed(view), words);
  if (view.models.length === 0) return words.__("Finished in %1", time);
  const names = view.models.map((model) => words.__("%1 version %2", model.name, model.version));
  return words.__("Finished in %1: %2", time, names.join(", "));
}

function unknown(view: RunView, words: Words): string {
  const clause = clauseOf(view.message, words) || words.say(view.reason) || words.__("nothing is known of it");
  if (!view.phase) return words.__("Unknown: %1", clause);
  return words.__("Unknown: %1 (the backend says '%2')", clause, view.phase);
}
