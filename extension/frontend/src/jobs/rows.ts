/** The runs known to the page: from the list and from the stream, newest first. */

import { isSuspended } from "../sentences";
import { ageOf, type RunView } from "../types";

export type Group = "all" | "active" | "suspended" | "done" | "failed" | "cancelled";

const STATUSES: Record<Group, readonly string[]> = {
  all: [],
  active: ["WAITING", "STARTING", "RUNNING", "CANCELLING", "UNKNOWN"],
  suspended: ["KILLED"],
  done: ["FINISHED"],
  failed: ["FAILED"],
  cancelled: ["KILLED"],
};

/** The `status=` of a group as the launcher takes it; "" for all. */
export function statusesOf(group: Group): string {
  return STATUSES[group].join(",");
}

export class Rows {
  private readonly views = new Map<string, RunView>();

  /** Keeps the newer of two: a list that was asked before an event may come after it. */
  put(view: RunView): void {
    const known = this.views.get(view.run_id);
    if (!known || ageOf(view) >= ageOf(known)) this.views.set(view.run_id, view);
  }

  get(runId: string): RunView | undefined {
    return this.views.get(runId);
  }

  get size(): number {
    return this.views.size;
  }

  /** Those of a group whose name, id, notebook or model holds every word of `text`. */
  shown(group: Group, text: string): RunView[] {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    const statuses = STATUSES[group];
    return [...this.views.values()]
      .filter((view) => !statuses.length || statuses.includes(view.status))
      .filter((view) => view.status !== "KILLED" || group === "all" || isSuspended(view) === (group === "suspended"))
      .filter((view) => wanted.every((word) => searched(view).includes(word)))
      .sort((one, other) => other.created - one.created || (other.run_id < one.run_id ? -1 : 1));
  }
}

function searched(view: RunView): string {
  const models = view.models.map((model) => model.name);
  return [view.name, view.run_id, view.spec.notebook, ...models].join(" ").toLowerCase();
}
