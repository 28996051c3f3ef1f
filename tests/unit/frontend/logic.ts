/** Run by test_logic.py in Node: prints one JSON object with what the plain parts of the front end answer. */

import { type Api, ApiError } from "../../../extension/frontend/src/api";
import { merged } from "../../../extension/frontend/src/card/steps";
import { Endings } from "../../../extension/frontend/src/jobs/endings";
import { type Group, Rows } from "../../../extension/frontend/src/jobs/rows";
import type { CheckAnswer, PlanAnswer, Preset } from "../../../extension/frontend/src/promote/answers";
import {
  emptyChoice,
  faultOf,
  placeOf,
  queueOf,
  requestOf,
  shownDefault,
} from "../../../extension/frontend/src/promote/choice";
import { startsText } from "../../../extension/frontend/src/promote/travels";
import { mintId } from "../../../extension/frontend/src/promote/id";
import { Session } from "../../../extension/frontend/src/promote/session";
import type { JobSpec, RunView, Status } from "../../../extension/frontend/src/types";
import { english } from "../../../extension/frontend/src/words";

const later = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const gang: Preset = {
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

const spec: JobSpec = {
  name: "a",
  snapshot_id: "",
  notebook: "work/digits.ipynb",
  script: "",
  cwd: ".",
  workers: 1,
  gpus_per_worker: 0,
  slice: null,
  queue: "default",
  preset: "torchrun",
  parameters: {},
  data: [],
  secrets: [],
  model_name: "",
  tags: {},
};
const running: RunView = {
  promotion_id: "p-1",
  run_id: "r-1",
  name: "a",
  owner: "ann",
  status: "RUNNING",
  spec,
  attempt: 1,
  mlflow_run_id: null,
  phase: "",
  reason: "",
  message: "",
  position: null,
  failure: null,
  exit_code: null,
  created: 1,
  started: 1,
  ended: null,
  latest: {},
  dropped_points: 0,
  ranks: [],
  tracker: "none",
  tracked: true,
  history: [],
  models: [],
};
const view = (fields: Partial<RunView>): RunView => ({ ...running, ...fields });
const changes = (count: number): RunView["history"] =>
  Array.from({ length: count }, (_, time) => ({ time, attempt: 1, status: "RUNNING", reason: "", message: "" }));

/** A server that loses the first answer of `promote`, and refuses what it is told to. */
class FakeServer implements Api {
  readonly sent: string[] = [];

  constructor(private readonly refusal: ApiError | null) {}

  get<T>(): Promise<T> {
    return Promise.resolve({ launcher: "up", presets: [gang], queues: ["default"], capacity } as T);
  }

  async post<T>(path: string): Promise<T> {
    const check: CheckAnswer = { findings: [], ok: true, cells: { travelling: 1, code: 1 }, seconds: 0.1, parameters: [] };
    if (path === "check") return check as T;
    if (this.refusal) throw this.refusal;
    const plan: Partial<PlanAnswer> = { spec, capacity, position: 1, notes: [] };
    return plan as T;
  }

  async lines<T>(_path: string, body: unknown, each: (line: T) => void): Promise<void> {
    this.sent.push((body as { promotion_id: string }).promotion_id);
    if (this.sent.length === 1) throw new ApiError(0, "server-away", "gone");
    await later(20);
    each({ view: view({ status: "WAITING" }) } as T);
  }

  text(): Promise<{ text: string; next: number }> {
    throw new Error("no log is asked for");
  }

  stream(): Promise<ReadableStream<Uint8Array>> {
    throw new Error("no stream is asked for");
  }

  url(path: string): string {
    return path;
  }
}

async function sessionWith(refusal: ApiError | null): Promise<{ session: Session; api: FakeServer }> {
  const api = new FakeServer(refusal);
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
  const localStorage = {
    getItem: (key: string) => store.get(key) ?? null,
    setItem: (key: string, text: string) => void store.set(key, text),
  };
  Object.assign(globalThis, { localStorage });
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
  kept.put(view({ status: "FINISHED", history: changes(3) }));
  kept.put(view({ status: "RUNNING", history: changes(2) }));
  kept.put(view({ run_id: "r-2", name: "量子", created: 2 }));
  kept.put(view({ run_id: "r-3", name: "c", created: -2, status: "KILLED", reason: "suspended by ann" }));
  kept.put(view({ run_id: "r-4", name: "d", created: -3, status: "KILLED", reason: "cancelled by ann" }));
  const ids = (group: Group, text: string) => kept.shown(group, text).map((row) => row.run_id);
  return {
    all: ids("all", ""),
    done: ids("done", ""),
    suspended: ids("suspended", ""),
    cancelled: ids("cancelled", ""),
    text: ids("all", "量"),
    notebook: ids("all", "DIGITS r-1"),
  };
}

/** The steps of a card whose run waited for no time at all. */
function steps(): string[] {
  const change = (status: Status, time: number) => ({ time, attempt: 1, status, reason: "", message: "" });
  const history = [change("WAITING", 10), change("STARTING", 10.02), change("STARTING", 11), change("RUNNING", 12)];
  return merged(view({ history })).map(({ status }) => status);
}

const choice = { ...emptyChoice(), workers: "2", parameters: { lr: "1e-2" }, name: " x " };
console.log(
  JSON.stringify({
    ids: [mintId(1_764_469_000_000), mintId(1_764_469_000_001)],
    empty: requestOf(emptyChoice(), gang, capacity),
    request: requestOf(choice, gang, capacity),
    queues: [
      queueOf(emptyChoice(), gang, ["alpha", "default"]),
      queueOf(emptyChoice(), gang, ["alpha", "beta"]),
      queueOf(emptyChoice(), { ...gang, queue: "beta" }, ["alpha", "beta"]),
      queueOf({ ...emptyChoice(), queue: "alpha" }, { ...gang, queue: "beta" }, ["alpha", "beta"]),
    ],
    ofACluster: requestOf(emptyChoice(), gang, { ...capacity, queues: ["alpha"] }),
    starts: [[], ["It would wait: Queue team is full."]].map((notes) =>
      startsText({ position: null, capacity: { ...capacity, quotas: [] }, spec, notes } as unknown as PlanAnswer, english),
    ),
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
    steps: steps(),
    endings: await endings(),
    oneJob: await oneJob(),
    refusedPlan: await refusedPlan(),
  }),
);
