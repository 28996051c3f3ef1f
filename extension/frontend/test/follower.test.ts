import assert from "node:assert/strict";
import test from "node:test";

import { type Api, ApiError } from "../src/api";
import { Follower } from "../src/card/follower";
import type { Feed, Watcher } from "../src/stream";
import type { RunView } from "../src/types";

Object.assign(globalThis, { document: { hidden: false } });

const view = (changes: number): RunView =>
  ({ run_id: "r-a", attempt: 1, history: Array.from({ length: changes }), latest: {}, ranks: [] }) as unknown as RunView;

/** One card's surroundings: what it asked for, what it was told, and the stream it watches. */
function surroundings(answer: () => RunView) {
  const told: string[] = [];
  const watchers: Watcher[] = [];
  const api = { get: async (path: string) => (told.push(`GET ${path}`), answer()) } as unknown as Api;
  const watch = (_: string, watcher: Watcher) => (watchers.push(watcher), { dispose: () => watchers.pop() });
  const listener = {
    view: (seen: RunView) => told.push(`view ${seen.history.length}`),
    points: () => undefined,
    reload: async () => void told.push("reload"),
    standing: (standing: string) => told.push(standing),
  };
  const follower = new Follower("r-a", { api, feed: { watch } as unknown as Feed, listener });
  return { follower, told, watchers };
}

test("a view of now is shown at once, and read again when the stream is open", async () => {
  const { follower, told, watchers } = surroundings(() => view(3));
  follower.begin(view(2));
  follower.watch();
  assert.deepEqual(told, ["view 2"]);
  watchers[0].reset?.();
  await new Promise((done) => setTimeout(done));
  assert.deepEqual(told, ["view 2", "GET api/jobs/r-a", "view 3", "reload"]);
});

test("an answer that an event has overtaken is not shown", async () => {
  const { follower, told, watchers } = surroundings(() => view(2));
  await follower.start();
  watchers[0].run?.(view(4));
  watchers[0].reset?.();
  await new Promise((done) => setTimeout(done));
  assert.deepEqual(told.filter((text) => text.startsWith("view")), ["view 2", "view 4"]);
});

test("a saved run that is not this user's is not watched", async () => {
  const { follower, told, watchers } = surroundings(() => {
    throw new ApiError(404, "run-unknown", "There is no run r-a of yours.");
  });
  follower.begin(view(2));
  await follower.start();
  assert.deepEqual([told.at(-1), watchers.length], ["gone", 0]);
});
