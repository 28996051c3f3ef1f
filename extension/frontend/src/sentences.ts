/** What is going on with a run: the sentences of slicelift/sentences.py, which a test compares with these. */

import { durationText, numberText, percentText } from "./figures";
import { type Failure, isTerminal, type RunView, type Status, type StatusChange } from "./types";
import type { Words } from "./words";

export const THROUGHPUT_KEYS = ["throughput_samples_per_second", "throughput_steps_per_second", "step_time_seconds"];
export const MEMORY_KEYS = ["peak_gpu_memory_bytes", "peak_host_memory_bytes"];
/** Which part of the time of its last half minute or so a rank has waited for data. */
export const WAIT_KEY = "data_wait_fraction";
const AUTOMATIC = [...THROUGHPUT_KEYS, ...MEMORY_KEYS, WAIT_KEY];
/** From there on waiting is worth a word. */
const HUNGRY = 0.5;

/** How the reason of a run begins that was suspended; the name of who did it follows. */
const SUSPENDED = "suspended by ";

/** Whether somebody has ended it to resume it later; a retry does that. */
export function isSuspended({ status, reason }: { status: Status; reason: string }): boolean {
  return status === "KILLED" && reason.startsWith(SUSPENDED);
}

/** Whether it is being ended with time to save a checkpoint, which a cancel cuts short. */
export function isSuspending({ status, reason }: { status: Status; reason: string }): boolean {
  return status === "CANCELLING" && reason.startsWith(SUSPENDED);
}

/** One word for a status; `reason` tells a suspended run from a cancelled one. */
export function statusWord(status: Status, words: Words, reason = ""): string {
  if (isSuspended({ status, reason })) return words.__("Suspended");
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
      return starting(view, words);
    case "RUNNING":
      return running(view, words);
    case "CANCELLING":
      return cancelling(view, words);
    case "FINISHED":
      return finished(view, words);
    case "FAILED":
      if (view.failure) return failureSentence(view.failure, view.spec.notebook, words);
      return words.__("Failed: %1", clause || words.say(view.reason) || words.__("no reason is known"));
    case "KILLED":
      if (isSuspended(view)) return suspended(view, words);
      return words.__("Cancelled: %1", clause || words.say(view.reason) || words.__("no reason is known"));
    default:
      return unknown(view, words);
  }
}

/** What is said beside the sentence: what is still on its way, what is not shown, what MLflow does not take. */
export function remarks(view: RunView, words: Words): string[] {
  const found: string[] = [];
  if (["RUNNING", "FINISHED"].includes(view.status) && view.message) found.push(clauseOf(view.message, words));
  if (view.network) found.push(clauseOf(view.network, words));
  found.push(...hungry(view, words));
  const over = ["FINISHED", "FAILED", "KILLED"].includes(view.status);
  if (over && view.phase === "delivering") found.push(words.__("Still delivering logs and outputs"));
  found.push(...leftOut(view, words));
  const why = clauseOf(view.tracker_message ?? "", words);
  if (why) found.push(words.__("MLflow does not take this run, and is asked again: %1", why));
  return found;
}

/** Whether data is what training waits for: of the rank that waits most, since all others wait for that one. */
function hungry(view: RunView, words: Words): string[] {
  const shares = Object.entries(view.latest).flatMap(([name, [, value]]) =>
    name.split("/").pop() === WAIT_KEY && typeof value === "number" && value <= 1 ? [value] : [],
  );
  const most = Math.max(0, ...shares);
  if (view.status !== "RUNNING" || most <= HUNGRY) return [];
  return [
    words.__(
      "Waits for data %1 of the time: more DataLoader workers or a faster store help more than GPUs",
      percentText(most),
    ),
  ];
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

/** The keys that the notebook logged, a loss first; ours (step time and the like) and other ranks' left out. */
export function userMetrics(keys: string[]): string[] {
  const own = keys.filter((key) => !AUTOMATIC.includes(key) && !/^(system|rank\/\d+)\//.test(key));
  const weight = (key: string) => (key.includes("loss") ? 0 : 1);
  return own.sort((a, b) => weight(a) - weight(b) || (a < b ? -1 : 1));
}

/** Seconds from start (or submit) to end (or now), over all attempts; not those between an end and a retry. */
export function elapsed(view: RunView, now: number = Date.now() / 1000): number {
  const end = view.ended ?? now;
  const start = view.started ?? view.created;
  if (view.attempt === 1 || !view.history.length) return end - start;
  const first = view.history.find(({ status }) => status === "STARTING" || status === "RUNNING");
  return end - (first?.time ?? start) - paused(view.history);
}

/** Seconds in which an attempt was over and the next one not asked for yet. */
function paused(history: StatusChange[]): number {
  const gaps = history.slice(1).map((change, index) => {
    const before = history[index];
    return change.attempt > before.attempt && isTerminal(before.status) ? change.time - before.time : 0;
  });
  return gaps.reduce((sum, gap) => sum + gap, 0);
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
  if (view.attempt > 1) {
    const told = [place, clause, again(view, words)].filter(Boolean);
    return words.__("Waiting to start again, attempt %1: %2", view.attempt, listed(told, words));
  }
  return clause ? words.__("Waiting: %1; %2", place, clause) : words.__("Waiting: %1", place);
}

function starting(view: RunView, words: Words): string {
  const clause = clauseOf(view.message, words);
  const usual = words.__("preparing the processes");
  if (view.attempt === 1) return words.__("Starting: %1", clause || usual);
  const told = [again(view, words), clause].filter(Boolean);
  return words.__("Starting again, attempt %1: %2", view.attempt, listed(told, words) || usual);
}

/** Why there is another attempt, and where it goes on, as far as that is known. */
function again(view: RunView, words: Words): string {
  const why = clauseOf(view.previous ?? "", words);
  const step = view.checkpoint ?? null;
  if (step === null) return why;
  return why ? words.__("%1, goes on from step %2", why, step) : words.__("goes on from step %1", step);
}

/** Clauses of one sentence. */
function listed(clauses: string[], words: Words): string {
  return clauses.reduce((said, clause) => (said ? words.__("%1; %2", said, clause) : clause), "");
}

function cancelling(view: RunView, words: Words): string {
  const clause = clauseOf(view.message, words);
  if (!isSuspending(view)) return words.__("Cancelling: %1", clause || words.__("ending every process"));
  return words.__("Suspending: %1", clause || words.__("waiting for a checkpoint, then ending every process"));
}

function suspended(view: RunView, words: Words): string {
  const who = view.reason.slice(SUSPENDED.length);
  const step = view.checkpoint ?? null;
  if (step === null) return words.__("Suspended by %1: no checkpoint is known", who);
  return words.__("Suspended by %1: its checkpoint is at step %2", who, step);
}

function running(view: RunView, words: Words): string {
  const steps = Object.values(view.latest).map(([step]) => step);
  if (steps.length === 0) {
    const told = view.attempt > 1 ? again(view, words) : "";
    if (told) return words.__("Running again, attempt %1: %2", view.attempt, told);
    return words.__("Running: no step logged yet");
  }
  const step = Math.max(...steps);
  const [first] = userMetrics(Object.keys(view.latest));
  if (first === undefined) return words.__("Running: step %1", step);
  return words.__("Running: step %1, %2 %3", step, first, numberText(view.latest[first][1]));
}

function finished(view: RunView, words: Words): string {
  const whole = durationText(elapsed(view), words);
  const time = view.attempt > 1 ? words.__("%1, %2 attempts", whole, view.attempt) : whole;
  if (view.models.length === 0) return words.__("Finished in %1", time);
  const names = view.models.map((model) => words.__("%1 version %2", model.name, model.version));
  return words.__("Finished in %1: %2", time, names.join(", "));
}

function unknown(view: RunView, words: Words): string {
  const clause = clauseOf(view.message, words) || words.say(view.reason) || words.__("nothing is known of it");
  if (!view.phase) return words.__("Unknown: %1", clause);
  return words.__("Unknown: %1 (the backend says '%2')", clause, view.phase);
}
