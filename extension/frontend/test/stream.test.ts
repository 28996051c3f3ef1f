import assert from "node:assert/strict";
import test from "node:test";

import { type Api, ApiError, splitAt } from "../src/api";
import { Feed } from "../src/stream";

const page = Object.assign(new EventTarget(), { hidden: false });
Object.assign(globalThis, { document: page, window: new EventTarget() });

/** A launcher that keeps every stream open until the test speaks. */
class Streams {
  readonly asked: { path: string; lastId: string; signal: AbortSignal }[] = [];
  readonly open: ReadableStreamDefaultController<Uint8Array>[] = [];
  fault: ApiError | null = null;

  readonly api = {
    stream: async (path: string, signal: AbortSignal, lastId: string) => {
      this.asked.push({ path, lastId, signal });
      if (this.fault) throw this.fault;
      return new ReadableStream<Uint8Array>({
        start: (controller) => {
          this.open.push(controller);
          signal.addEventListener("abort", () => controller.error(new Error("aborted")));
        },
      });
    },
  } as unknown as Api;

  say(text: string): void {
    this.open.at(-1)?.enqueue(new TextEncoder().encode(text));
  }
}

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));
const event = (id: string, run: string) => `id: ${id}\nevent: run\ndata: {"run_id":"${run}"}\n\n`;

test("one stream for many cards, opened once, and each gets its own run", async () => {
  const streams = new Streams();
  const feed = new Feed(streams.api);
  const heard: string[] = [];
  const cards = ["r-a", "r-b"].map((run) => feed.watch(run, { run: (view) => heard.push(`${run}:${view.run_id}`) }));
  await pause(80);
  assert.deepEqual(streams.asked.map(({ path }) => path), ["api/events?runs=r-a,r-b"]);
  streams.say(event("i-1", "r-b").slice(0, 20));
  await pause(5);
  streams.say(event("i-1", "r-b").slice(20));
  await pause(20);
  assert.deepEqual(heard, ["r-b:r-b"]);
  cards.forEach((card) => card.dispose());
  await pause(80);
  assert.equal(streams.asked[0].signal.aborted, true);
});

test("more than twenty runs, or a list: one stream of all", async () => {
  const streams = new Streams();
  const feed = new Feed(streams.api);
  const cards = Array.from({ length: 21 }, (_, index) => feed.watch(`r-${index}`, {}));
  await pause(80);
  assert.deepEqual(streams.asked.map(({ path }) => path), ["api/events"]);
  cards.forEach((card) => card.dispose());
  await pause(80);
});

test("a newcomer does not make the others read again, and nothing is missed", async () => {
  const streams = new Streams();
  const feed = new Feed(streams.api);
  const resets: string[] = [];
  const first = feed.watch("r-a", { reset: () => resets.push("a") });
  await pause(80);
  streams.say(event("i-7", "r-a"));
  await pause(20);
  const second = feed.watch("r-b", { reset: () => resets.push("b") });
  await pause(80);
  assert.deepEqual(resets, ["a", "b"]);
  assert.equal(streams.asked[1].lastId, "i-7");
  first.dispose();
  second.dispose();
  await pause(80);
});

test("a hidden page is quiet and goes on where it was", async () => {
  const streams = new Streams();
  const feed = new Feed(streams.api);
  const card = feed.watch("r-a", {});
  await pause(80);
  streams.say(event("i-3", "r-a"));
  await pause(20);
  page.hidden = true;
  page.dispatchEvent(new Event("visibilitychange"));
  await pause(80);
  assert.equal(streams.asked[0].signal.aborted, true);
  assert.equal(streams.asked.length, 1);
  page.hidden = false;
  page.dispatchEvent(new Event("visibilitychange"));
  await pause(80);
  assert.deepEqual([streams.asked.length, streams.asked[1].lastId], [2, "i-3"]);
  card.dispose();
  await pause(80);
});

test("an away launcher is told with its words and tried again", async () => {
  const streams = new Streams();
  const feed = new Feed(streams.api);
  const told: string[] = [];
  streams.fault = new ApiError(503, "launcher-away", "The launcher does not answer.", "Wait a little.");
  const card = feed.watch("r-a", { connection: (state, message) => told.push(`${state} ${message ?? ""}`.trim()) });
  await pause(80);
  streams.fault = null;
  await pause(900);
  assert.deepEqual(told, ["away The launcher does not answer. Wait a little.", "live"]);
  card.dispose();
  await pause(80);
});

test("a run that is no longer known does not cut off the others", async () => {
  const streams = new Streams();
  const feed = new Feed(streams.api);
  streams.fault = new ApiError(404, "run-unknown", "There is no run r-a of yours.");
  const card = feed.watch("r-a", {});
  await pause(80);
  streams.fault = null;
  await pause(900);
  assert.deepEqual(streams.asked.map(({ path }) => path), ["api/events?runs=r-a", "api/events"]);
  card.dispose();
  await pause(80);
});

test("text cut inside a Chinese character is put together", async () => {
  const bytes = new TextEncoder().encode("训练\n\n中");
  const parts = [bytes.slice(0, 4), bytes.slice(4, 9), bytes.slice(9)];
  const stream = new ReadableStream<Uint8Array>({ start: (to) => (parts.forEach((part) => to.enqueue(part)), to.close()) });
  const pieces: string[] = [];
  for await (const piece of splitAt(stream, "\n\n")) pieces.push(piece);
  assert.deepEqual(pieces, ["训练", "中"]);
});
