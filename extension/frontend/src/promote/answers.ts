/** What the server extension answers to `context`, `check`, `plan` and `promote`. */

import type { Fault } from "../faults";
import type { RunView } from "../types";

export interface FindingRow {
  code: string;
  severity: "error" | "warning" | "note";
  message: string;
  cell: number | null;
  line: number | null;
  fix: string | null;
  file: string | null;
  source: string;
}

/** A name of the `parameters` cells; `default` is the literal as text. */
export interface Parameter {
  name: string;
  default: string;
  type: string;
}

export interface CheckAnswer {
  findings: FindingRow[];
  ok: boolean;
  cells: { travelling: number; code: number };
  seconds: number;
  parameters: Parameter[];
}

export interface Preset {
  name: string;
  display_name: string;
  description: string;
  kind: string;
  workers: number;
  gpus_per_worker: number;
  max_workers?: number | null;
  default?: boolean;
  queue?: string;
}

export interface SlicePool {
  name: string;
  total: number;
  free: number;
  simulated: boolean;
}

export interface Capacity {
  slots: { total: number; free: number };
  gpus: { total: number; free: number };
  slices: SlicePool[];
  queues: string[];
  waiting: number;
  /** Of a cluster's queues; one machine has none. Its slots are cores. */
  quotas?: unknown[];
}

export interface Context {
  hub: boolean;
  user: string;
  launcher: "up" | "starting" | "away";
  /** Why it is not up, and what to do. */
  message?: string;
  presets: Preset[];
  queues: string[];
  capacity: Capacity | null;
}

export interface DataRow {
  path: string;
  md5: string;
  nfiles: number;
  size_bytes: number;
  remote: string;
  proved: boolean;
}

export interface Travels {
  code: {
    commit: string;
    branch: string;
    dirty_files: number;
    files: number;
    size_bytes: number;
    to_upload: number | { files: number; bytes: number } | null;
  };
  data: DataRow[];
  packages: { pinned: number } & Record<string, unknown>;
}

export interface PlanAnswer {
  travels: Travels;
  spec: { workers: number; gpus_per_worker: number; slice: string | null; queue: string; preset: string };
  manifest: unknown;
  position: number | null;
  capacity: Capacity | null;
  notes: string[];
  script: string;
}

/** The body of `plan` and `promote` below `request`; what is left out is what the preset or the notebook says. */
export interface PromoteRequest {
  workers?: number;
  gpus_per_worker?: number;
  slice?: string;
  queue?: string;
  preset?: string;
  parameters?: Record<string, string>;
  name?: string;
  model_name?: string;
  secrets?: string[];
}

export interface Step {
  name: string;
  text: string;
  seconds: number;
}

/** One line of `promote`. */
export interface PromoteLine {
  step?: Step;
  view?: RunView;
  error?: Fault;
}
