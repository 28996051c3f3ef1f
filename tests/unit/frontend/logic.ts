/** Run by test_logic.py in Node: prints one JSON object with what the plain parts of the front end answer. */

import { ApiError } from "../../../extension/frontend/src/api";
import { Endings } from "../../../extension/frontend/src/jobs/endings";
import { Rows } from "../../../extension/frontend/src/jobs/rows";
import {
  emptyChoice,
  faultOf,
  placeOf,
  requestOf,
  shownDefault,
} from "../../../extension/frontend/src/promote/choice";
import { mintId } from "../../../extension/frontend/src/promote/id";
import { Session } from "../../../extension/frontend/src/promote/session";
import { english } from "../../../extension/frontend/src/words";

const later = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const gang = {
  name: "torchrun",
  display_name: "",
  description: "",
  kind: "gang",
  workers: 1,
  gpus_per_worker: 0,
};
const slice = { ...gang, name: "slice", kind: "slice" };
const capacity = {
  slots: { total: 2, free: 2 },
  gpus: { total: 0, free: 0 },
  slices: [
    { name: "1g.10gb", total: 1, free: 0, simulated: true },
    { name: "2g.20gb", total: 1, free: 1, simulated: true },
  ],
  queues: ["default"],
  waiting: 0,
};

const view = (fields: object): any => ({
  run_id: "r-1",
  name: "a",
  status: "RUNNING",
  attempt: 1,
  created: 1,
  started: 1,
  ended: null,
  history: [],
  models: [],
  latest: {},
  spec: { notebook: "work/digits.ipynb" },
  message: "",
  ...fields,
});

/** A server that loses the first answer of `promote`, and refuses what it is told to. */
function fakeApi(refusal: ApiError | null): any {
  const sent: any[] = [];
  const check = { findings: [], ok: true, cells: { travelling: 1, code: 1 }, seconds: 0.1, parameters: [] };
  return {
    sent,
    get: async () => ({ launcher: "up", presets: [gang], queues: ["default"], capacity }),
    post: async (path: string) => {
      if (path === "check") return check;
      if (refusal) throw refusal;
      return { travels: {}, spec: gang, capacity, position: 1, notes: [] };
    },
    lines: async (_path: string, body: any, each: (line: any) => void) => {
      sent.push(body.promotion_id);
      if (sent.length === 1) throw new ApiError(0, "server-away", "gone");
      await later(20);
      each({ view: view({ status: "WAITING" }) });
    },
  };
}

async function sessionWith(refusal: ApiError | null): Promise<{ session: Session; api: any }> {
  const api = fakeApi(refusal);
  const around = { api, words: english, path: "a.ipynb", save: async () => true, submitted: () => undefined };
  const session = new Session(around, () => undefined);
  await session.open();
  return { session, api };
}

async function oneJob(): Promise<object> {
  const { session, api } = await sessionWith(null);
  await Promise.all([session.submit(), session.submit()]);
  const first = [...api.sent];
  await session.again();
  await session.submit();
  session.dispose();
  return { first, run: session.state.run?.run_id, second: api.sent[api.sent.length - 1] };
}

async function refusedPlan(): Promise<object> {
  const { session, api } = await sessionWith(new ApiError(409, "data-modified", "changed", "dvc add"));
  await session.submit();
  session.dispose();
  return { why: session.hindrance(), hint: session.state.planFault?.hint, sent: api.sent };
}

async function endings(): Promise<string[]> {
  const store = new Map<string, string>();
  (globalThis as any).localStorage = {
    getItem: (key: string) => store.get(key) ?? null,
    setItem: (key: string, text: string) => void store.set(key, text),
  };
  const told: string[] = [];
  const tabs = ["first", "second"].map(
    (tab) =>
      new Endings(
        (ending) => told.push(`${tab} ${ending.key}`),
        () => tab === "first",
      ),
  );
  tabs.forEach((tab) => tab.seen(view({})));
  tabs.forEach((tab) => tab.seen(view({ status: "FINISHED", ended: 5 })));
  tabs.forEach((tab) => tab.seen(view({ status: "FINISHED", ended: 5 })));
  tabs[0].seen(view({ run_id: "r-old", status: "FAILED", ended: 5 }));
  tabs[0].seen(view({ run_id: "r-new", status: "FAILED", ended: Date.now() / 1000 + 1 }));
  await later(700);
  return told.sort();
}

function rows(): object {
  const kept = new Rows();
  kept.put(view({ status: "FINISHED", history: [1, 2, 3] }));
  kept.put(view({ status: "RUNNING", history: [1, 2] }));
  kept.put(view({ run_id: "r-2", name: "量子", created: 2 }));
  const ids = (group: any, text: string) => kept.shown(group, text).map((row) => row.run_id);
  return {
    all: ids("all", ""),
    done: ids("done", ""),
    text: ids("all", "量"),
    notebook: ids("all", "DIGITS r-1"),
  };
}

const choice = { ...emptyChoice(), workers: "2", parameters: { lr: "1e-2" }, name: " x " };
console.log(
  JSON.stringify({
    ids: [mintId(1_764_469_000_000), mintId(1_764_469_000_001)],
    empty: requestOf(emptyChoice(), gang, capacity),
    request: requestOf(choice, gang, capacity),
    slice: requestOf({ ...emptyChoice(), preset: "slice", workers: "2" }, slice, capacity),
    typed: ["2", "0", "1.5", "?", ""].map(
      (workers) => faultOf({ ...choice, workers }, gang, english)?.code ?? null,
    ),
    places: [
      "gang-too-large",
      "slice-missing",
      "data-modified",
      "preflight-refused",
      "queue-unknown",
      "odd",
    ].map((code) => placeOf({ code, message: "", hint: "" })),
    defaults: [
      ["'adamw'", "str"],
      ["'a\\nb'", "str"],
      ["3", "int"],
    ].map(([text, type]) => shownDefault({ name: "x", default: text, type })),
    rows: rows(),
    endings: await endings(),
    oneJob: await oneJob(),
    refusedPlan: await refusedPlan(),
  }),
);
