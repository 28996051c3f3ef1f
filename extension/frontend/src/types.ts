/** The launcher's JSON as it arrives: slicelift.models on the other side. Times are Unix seconds. */

export type Status =
  | "WAITING"
  | "STARTING"
  | "RUNNING"
  | "CANCELLING"
  | "FINISHED"
  | "FAILED"
  | "KILLED"
  | "UNKNOWN";

/** NaN and the infinities travel as words. */
export type Figure = number | "NaN" | "Infinity" | "-Infinity";

export interface Failure {
  message: string;
  rank: number | null;
  exit_code: number | null;
  exception: string;
  /** Counts all cells of the file from 0. */
  cell: number | null;
  /** Counts from 1 within the cell. */
  line: number | null;
  file: string | null;
  source: string;
  traceback: string;
}

export interface StatusChange {
  time: number;
  attempt: number;
  status: Status;
  reason: string;
  message: string;
}

export interface AliasChange {
  alias: string;
  who: string;
  time: number;
  before: string | null;
  after: string;
}

export interface ModelVersion {
  name: string;
  version: string;
  run_id: string;
  aliases: string[];
  tags: Record<string, string>;
  created: number;
  /** The last change of each alias of this model that touches this version. */
  alias_changes?: AliasChange[];
}

export interface Output {
  attempt: number;
  path: string;
  size_bytes: number;
  sha256: string;
}

export interface Rank {
  rank: number;
  state: string;
  last_seen: number | null;
  step: number | null;
}

export interface JobSpec {
  name: string;
  snapshot_id: string;
  notebook: string;
  script: string;
  cwd: string;
  workers: number;
  gpus_per_worker: number;
  slice: string | null;
  queue: string;
  preset: string;
  /** Fewer than `workers`, or what it has after it was scaled down: the gang is elastic. */
  min_workers?: number | null;
  parameters: Record<string, unknown>;
  data: { path: string; md5: string; size_bytes: number; nfiles: number; remote: string }[];
  secrets: string[];
  model_name: string;
  tags: Record<string, string>;
}

export interface RunView {
  promotion_id: string;
  run_id: string;
  name: string;
  owner: string;
  status: Status;
  spec: JobSpec;
  attempt: number;
  mlflow_run_id: string | null;
  phase: string;
  reason: string;
  message: string;
  position: number | null;
  failure: Failure | null;
  exit_code: number | null;
  created: number;
  started: number | null;
  ended: number | null;
  latest: Record<string, [number, Figure]>;
  /** What a check of the network between the workers found. */
  network?: string;
  dropped_points: number;
  /** By reason; without a launcher that tells it, the spool was full. */
  dropped_by?: Record<string, number>;
  ranks: Rank[];
  tracker: string;
  /** Why MLflow does not take this run. */
  tracker_message?: string;
  tracked: boolean;
  history: StatusChange[];
  models: ModelVersion[];
  /** The step of the newest checkpoint that an attempt told of. */
  checkpoint?: number | null;
  /** Why the attempt before this one failed. */
  previous?: string;
}

export interface Attempt {
  attempt: number;
  status: Status;
  reason: string;
  message: string;
  started: number | null;
  ended: number | null;
  exit_code: number | null;
  ranks: Rank[];
  failure: Failure | null;
  dropped_points?: number;
}

/** [step, time, value] */
export type Point = [number, number, Figure];

export interface Series {
  key: string;
  attempt: number;
  rank: number;
  /** All that was logged; `points` is what is left to draw. */
  count: number;
  points: Point[];
}

/** `event: points` of the stream: [key, step, time, value]. */
export interface PointBatch {
  run_id: string;
  attempt: number;
  rank: number;
  points: [string, number, number, Figure][];
}

/** What lies in the notebook as application/vnd.slicelift.run+json. */
export interface Bundle {
  version: number;
  run_id: string;
  view: RunView;
  series: Series[];
}

export const MIME = "application/vnd.slicelift.run+json";
export const JOBS_MIME = "application/vnd.slicelift.jobs+json";

/** Grows with every change of a run: of two views the one with the higher age is the newer. */
export function ageOf(view: RunView): number {
  return view.attempt * 1e6 + view.history.length;
}

/** True when no later status of the same attempt can follow. */
export function isTerminal(status: Status): boolean {
  return status === "FINISHED" || status === "FAILED" || status === "KILLED";
}
