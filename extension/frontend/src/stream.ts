/** One event stream per page, for every card, the jobs panel and the notifications together. */

import { type Api, ApiError, splitAt } from "./api";
import { faultText } from "./faults";
import type { PointBatch, RunView } from "./types";

export interface Disposer {
  dispose(): void;
}

export type Connection = "live" | "reconnecting" | "away";

export interface Watcher {
  run?(view: RunView): void;
  points?(batch: PointBatch): void;
  /** Points may have been missed: read the series again. */
  reset?(): void;
  connection?(state: Connection, message?: string): void;
}

const MOST_NAMED = 20; // above it one stream of all runs is cheaper than naming them
const PAUSE_FIRST_MS = 500;
const PAUSE_MOST_MS = 10_000;
const SILENCE_MS = 40_000; // the launcher comments every 15 s; longer than this and the line is dead
const SETTLE_MS = 50; // a notebook with 50 cards mounts them one after the other: open once for all

/**
 * Opens the stream when the first watcher comes, closes it with the last and while the page is hidden, and goes on
 * where it was by Last-Event-ID, also with another set of runs. Every watcher gets `reset` once the stream that
 * carries its run is open: what it reads then has no gap to what follows.
 */
export class Feed {
  private readonly named = new Map<string, Set<Watcher>>();
  private readonly everything = new Set<Watcher>();
  private readonly fresh = new Set<Watcher>();
  private abort: AbortController | null = null;
  private target = "";
  private lastId = "";
  private pause = PAUSE_FIRST_MS;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private state: Connection = "reconnecting";
  private message: string | undefined;
  private wide = false; // a run among those named is unknown to the launcher: naming none still works

  constructor(private readonly api: Api) {
    document.addEventListener("visibilitychange", () => this.settle());
    window.addEventListener("online", () => this.again());
  }

  /** Views and points of one run. */
  watch(runId: string, watcher: Watcher): Disposer {
    const watchers = this.named.get(runId) ?? new Set();
    this.named.set(runId, watchers.add(watcher));
    return this.joined(watcher, () => {
      watchers.delete(watcher);
      if (watchers.size === 0 && this.named.get(runId) === watchers) this.named.delete(runId);
    });
  }

  /** Views and points of every run of the user. */
  watchAll(watcher: Watcher): Disposer {
    this.everything.add(watcher);
    return this.joined(watcher, () => this.everything.delete(watcher));
  }

  /** Tries at once instead of after the pause: for a button and for a network that is back. */
  again(): void {
    this.pause = PAUSE_FIRST_MS;
    if (!this.abort) this.open();
  }

  private joined(watcher: Watcher, leave: () => void): Disposer {
    this.fresh.add(watcher);
    this.settle();
    if (this.state !== "reconnecting") watcher.connection?.(this.state, this.message);
    return {
      dispose: () => {
        leave();
        this.fresh.delete(watcher);
        this.settle();
      },
    };
  }

  private wanted(): string {
    if (document.hidden) return "";
    const runs = [...this.named.keys()].sort();
    if (this.everything.size || runs.length > MOST_NAMED || (this.wide && runs.length)) return "api/events";
    return runs.length ? `api/events?runs=${runs.join(",")}` : "";
  }

  private settle(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), SETTLE_MS);
  }

  /** Makes the stream be what is wanted now. */
  private open(): void {
    clearTimeout(this.timer);
    const target = this.wanted();
    if (this.abort && target === this.target) {
      if (this.state === "live") this.greet();
      return;
    }
    this.abort?.abort();
    this.abort = null;
    this.target = target;
    if (!target) return;
    const abort = new AbortController();
    this.abort = abort;
    void this.follow(target, abort);
  }

  private async follow(target: string, abort: AbortController): Promise<void> {
    let fault: unknown = null;
    try {
      await this.read(target, abort);
    } catch (error) {
      fault = error;
    }
    if (this.abort !== abort) return; // a newer stream has taken over, or nobody looks
    this.abort = null;
    if (fault instanceof ApiError && fault.status === 404) this.wide = true;
    this.tell(...stateAfter(fault));
    this.timer = setTimeout(() => this.open(), this.pause * (0.75 + Math.random() / 2));
    this.pause = Math.min(this.pause * 2, PAUSE_MOST_MS);
  }

  private async read(target: string, abort: AbortController): Promise<void> {
    let watchdog: ReturnType<typeof setTimeout> | undefined;
    const heard = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    heard();
    try {
      const resumed = this.lastId !== "";
      const body = await this.api.stream(target, abort.signal, this.lastId);
      this.pause = PAUSE_FIRST_MS;
      this.tell("live");
      if (resumed) this.greet();
      else this.resetAll();
      for await (const block of splitAt(body, "\n\n")) {
        heard();
        if (abort.signal.aborted) return;
        this.hand(block);
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  private hand(block: string): void {
    const event = parsed(block);
    if (event.id) this.lastId = event.id;
    if (event.name === "reset") this.resetAll();
    if (!event.data) return;
    if (event.name === "run") {
      const view = JSON.parse(event.data) as RunView;
      this.each((watcher) => watcher.run?.(view), view.run_id);
    } else if (event.name === "points") {
      const batch = JSON.parse(event.data) as PointBatch;
      this.each((watcher) => watcher.points?.(batch), batch.run_id);
    }
  }

  private tell(state: Connection, message?: string): void {
    if (state === this.state && message === this.message) return;
    this.state = state;
    this.message = message;
    this.each((watcher) => watcher.connection?.(state, message));
  }

  private greet(): void {
    const newcomers = [...this.fresh];
    this.fresh.clear();
    this.each((watcher) => newcomers.includes(watcher) && watcher.reset?.());
  }

  private resetAll(): void {
    this.fresh.clear();
    this.each((watcher) => watcher.reset?.());
  }

  /** One watcher's fault must not silence the others. */
  private each(call: (watcher: Watcher) => void, runId?: string): void {
    const ofRuns = runId === undefined ? [...this.named.values()] : [this.named.get(runId) ?? []];
    for (const watcher of [...ofRuns.flatMap((set) => [...set]), ...this.everything]) {
      try {
        call(watcher);
      } catch (error) {
        console.error("slicelift: a view failed on an event", error);
      }
    }
  }
}

function stateAfter(fault: unknown): [Connection, string?] {
  if (!(fault instanceof ApiError)) return ["reconnecting"];
  if (fault.code === "launcher-starting") return ["reconnecting", faultText(fault)];
  return ["away", faultText(fault)];
}

function parsed(block: string): { name: string; id: string; data: string } {
  const event = { name: "message", id: "", data: "" };
  for (const line of block.split("\n")) {
    const [, field, value] = /^(\w+): ?(.*)$/.exec(line) ?? [];
    if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
    else if (field === "data") event.data += event.data ? `\n${value}` : value;
  }
  return event;
}

