/** Keeps one run's view true: read once, then by the stream, read again whenever something may have been missed. */

import { type Api, ApiError } from "../api";
import { faultText } from "../faults";
import type { Connection, Disposer, Feed, Watcher } from "../stream";
import { ageOf, type PointBatch, type RunView } from "../types";

/** `gone`: not this user's, or no longer known. `connecting`: nothing has answered yet. `still`: nothing is asked. */
export type Standing = Connection | "connecting" | "gone" | "still";

/** What can be done with a run. */
export type Action = "cancel" | "suspend" | "scale" | "retry";

export interface Listener {
  view(view: RunView): void;
  points(batch: PointBatch): void;
  /** Points may have been missed. */
  reload(): Promise<void>;
  standing(standing: Standing, message: string): void;
}

export class Follower implements Disposer {
  private newest: RunView | null = null;
  private stream: Disposer | null = null;
  private ended = false;

  constructor(
    private readonly runId: string,
    private readonly parts: { api: Api; feed: Feed; listener: Listener },
  ) {}

  /** A view that is known: shown, and replaced by whatever the launcher says. */
  begin(known: RunView): void {
    this.newest = known;
    this.parts.listener.view(known);
  }

  /** A hidden page asks nothing; the feed opens when it is shown, and its `reset` begins the reading. */
  async start(): Promise<void> {
    if (!document.hidden && (await this.refresh()) === "gone") return;
    if (!this.ended) this.watch();
  }

  /** Without reading first: the stream begins with the view. */
  watch(): void {
    this.stream = this.parts.feed.watch(this.runId, this.watcher());
  }

  /** Posts an action on the run and shows what came of it. Throws ApiError. */
  async act(action: Action, body: object = {}): Promise<void> {
    this.take(await this.parts.api.post<RunView>(`api/jobs/${this.runId}/${action}`, body), true);
  }

  dispose(): void {
    this.ended = true;
    this.stream?.dispose();
    this.stream = null;
  }

  private watcher(): Watcher {
    return {
      run: (view) => this.take(view, true),
      points: (batch) => this.note(batch),
      reset: () => void this.catchUp(),
      connection: (state, message) => this.parts.listener.standing(state, message ?? ""),
    };
  }

  private async catchUp(): Promise<void> {
    if ((await this.refresh()) === "gone") return this.stream?.dispose();
    await this.parts.listener.reload().catch(() => undefined); // the stream tells when it can be read again
  }

  private async refresh(): Promise<"read" | "gone" | "away"> {
    try {
      this.take(await this.parts.api.get<RunView>(`api/jobs/${this.runId}`), false);
      return "read";
    } catch (error) {
      return this.refused(error);
    }
  }

  private refused(error: unknown): "gone" | "away" {
    if (this.ended) return "away";
    const fault = error instanceof ApiError ? error : new ApiError(0, "page-fault", String(error));
    const gone = fault.status === 404 || fault.status === 403;
    const starting = fault.code === "launcher-starting";
    this.parts.listener.standing(gone ? "gone" : starting ? "reconnecting" : "away", faultText(fault));
    return gone ? "gone" : "away";
  }

  /** An answer may be older than an event that overtook it; an event never is. */
  private take(view: RunView, isNews: boolean): void {
    const { newest } = this;
    if (this.ended) return;
    if (!isNews && newest && ageOf(view) < ageOf(newest)) return;
    this.newest = view;
    this.parts.listener.view(view);
  }

  /** The newest values and signs of life are in the points before the next view brings them. */
  private note(batch: PointBatch): void {
    const { newest } = this;
    if (newest && batch.attempt === newest.attempt) {
      const last = batch.points.at(-1);
      if (batch.rank === 0) for (const [key, step, , value] of batch.points) newest.latest[key] = [step, value];
      const row = newest.ranks.find((each) => each.rank === batch.rank);
      if (row && last) [row.step, row.last_seen] = [last[1], Math.max(row.last_seen ?? 0, last[2])];
    }
    this.parts.listener.points(batch);
  }
}
