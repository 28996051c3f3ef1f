import assert from "node:assert/strict";
import test from "node:test";

import { Curves, thinned } from "../src/card/curves";
import { chosenKeys, keyLabel } from "../src/card/keys";
import { oddRanks } from "../src/card/strip";
import type { Point, Rank } from "../src/types";
import { english } from "../src/words";

const loss = (attempt: number, points: Point[]) => ({ key: "loss", attempt, rank: 0, count: points.length, points });
const batch = (points: [string, number, number, number | "NaN"][], rank = 0) => ({ run_id: "r", attempt: 1, rank, points });

test("points that the answer already had are not drawn twice", () => {
  const curves = new Curves();
  curves.replace([loss(1, [[0, 10, 1], [1, 11, 0.5]])]);
  assert.equal(curves.add(batch([["loss", 1, 11, 0.5]]), ["loss"]), false);
  assert.equal(curves.add(batch([["loss", 2, 12, 0.4]]), ["loss"]), true);
  assert.deepEqual(curves.curves("loss")[0].steps, [0, 1, 2]);
  assert.equal(curves.count("loss"), 3);
});

test("what came while the answer was on its way stays", () => {
  const curves = new Curves();
  curves.add(batch([["loss", 0, 10, 1], ["loss", 1, 11, 0.5]]), ["loss"]);
  curves.replace([loss(1, [[0, 10, 1]])]);
  assert.deepEqual(curves.curves("loss")[0].steps, [0, 1]);
});

test("NaN is a gap and is counted; other ranks have no line", () => {
  const curves = new Curves();
  curves.add(batch([["loss", 0, 10, 1], ["loss", 1, 11, "NaN"], ["loss", 2, 12, 0.5]]), ["loss"]);
  curves.add(batch([["loss", 3, 13, 9]], 1), ["loss"]);
  const [curve] = curves.curves("loss");
  assert.deepEqual(curve.values, [1, null, 0.5]);
  assert.equal(curve.odd, 1);
});

test("thinning keeps the spike, the gap and both ends", () => {
  const points: Point[] = Array.from({ length: 4000 }, (_, step) => [step, step, 1]);
  points[1234] = [1234, 1234, 99];
  points[2345] = [2345, 2345, "NaN"];
  const kept = thinned(points, 600);
  assert.ok(kept.length <= 700, String(kept.length));
  const steps = kept.map(([step]) => step);
  for (const step of [0, 1234, 2345, 3999]) assert.ok(steps.includes(step), String(step));
});

test("a long stream stays bounded and counts on", () => {
  const curves = new Curves();
  for (let step = 0; step < 5000; step += 1) curves.add(batch([["loss", step, step + 1, step % 7]]), ["loss"]);
  assert.equal(curves.count("loss"), 5000);
  assert.ok(curves.curves("loss")[0].steps.length <= 1200);
});

test("loss, throughput, memory; else what there is", () => {
  const automatic = ["throughput_steps_per_second", "peak_host_memory_bytes", "step_time_seconds"];
  assert.deepEqual(chosenKeys(["accuracy", "val_loss", ...automatic, "rank/1/val_loss"]), [
    "val_loss",
    "throughput_steps_per_second",
    "peak_host_memory_bytes",
  ]);
  assert.deepEqual(chosenKeys(["b", "a"]), ["a", "b"]);
  assert.equal(keyLabel("peak_host_memory_bytes", english), "peak host memory");
});

test("a silent and a slow rank are named", () => {
  const row = (rank: number, last_seen: number | null, step: number | null): Rank => ({ rank, state: "running", last_seen, step });
  const odd = oddRanks([row(0, 100, 50), row(1, 100, 20), row(2, 40, 50), row(3, null, null), row(4, 100, 50)], english);
  assert.deepEqual([...odd.keys()], [1, 2]);
  assert.match(odd.get(1) ?? "", /60 % behind/);
  assert.match(odd.get(2) ?? "", /silent for 60 s/);
});
