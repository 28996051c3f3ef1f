import assert from "node:assert/strict";
import test from "node:test";

import { ApiError, HttpApi } from "../src/api";
import { english, type Words } from "../src/words";

const words: Words = { ...english, say: (text) => `<${text}>` };

async function fault(answer: () => Promise<Response>): Promise<ApiError> {
  const api = new HttpApi(answer, (path) => path, words);
  return api.get("api/jobs").then(
    () => assert.fail("no error"),
    (error: unknown) => error as ApiError,
  );
}

test("a refusal is told in the reader's language, with its code and detail", async () => {
  const body = { code: "queue-unknown", message: "There is no queue a.", hint: "Queues: b.", detail: { findings: [] } };
  const found = await fault(async () => new Response(JSON.stringify(body), { status: 404 }));
  assert.deepEqual(
    [found.status, found.code, found.message, found.hint, found.detail],
    [404, "queue-unknown", "<There is no queue a.>", "<Queues: b.>", { findings: [] }],
  );
});

test("what a proxy or a login page answers has a way on, too", async () => {
  for (const text of ["<html>", "[1]", "null", '{"message": ""}']) {
    const found = await fault(async () => new Response(text, { status: 502, statusText: "Bad Gateway" }));
    assert.equal(found.message, "The server answered: 502 Bad Gateway");
    assert.match(found.hint, /Try again/);
  }
});

test("a server that is gone has status 0", async () => {
  const found = await fault(() => Promise.reject(new TypeError("failed to fetch")));
  assert.deepEqual([found.status, found.code], [0, "server-away"]);
  assert.match(found.hint, /JupyterLab/);
});
