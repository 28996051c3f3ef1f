/** What goes along with a promotion, and when it starts. */

import { el, told, type Child } from "../elements";
import { type Fault, faultBox } from "../faults";
import { sizeText } from "../figures";
import type { Words } from "../words";
import type { Capacity, DataRow, PlanAnswer, Travels } from "./answers";
import { type Place, placeOf } from "./choice";

// how a cluster's launcher begins its note on why a job would not start at once
const WAIT = "It would wait: ";

/** Code, data, packages: a description list; a refusal stands beside the row it concerns. */
export function travelsList(plan: PlanAnswer | null, fault: Fault | null, words: Words): HTMLElement {
  const travels = plan?.travels;
  const beside = (place: Place): HTMLElement | null =>
    fault && placeOf(fault) === place ? faultBox(fault) : null;
  // without a plan only the row that a refusal concerns has something to say
  const row = (label: string, place: Place, ...children: Child[]): Node[] =>
    children.length || beside(place) ? [el("dt", {}, label), el("dd", {}, ...children, beside(place))] : [];
  return el(
    "dl",
    { class: "sl-rows" },
    ...row(words.__("code"), "code", ...(travels ? codeText(travels, words) : [])),
    ...row(words.__("data"), "data", ...(travels ? dataText(travels.data, words) : [])),
    ...row(words.__("packages"), "packages", ...(travels ? packagesText(travels, words) : [])),
  );
}

/** `41 files, 1.2 MiB, nothing to upload`. */
export function travelsSummary(travels: Travels, words: Words): string {
  const { files, size_bytes, to_upload } = travels.code;
  const counted = words._n("%1 file", "%1 files", files);
  return [counted, sizeText(size_bytes), uploadText(to_upload, words)].filter(Boolean).join(", ");
}

/** When it starts, and what else the launcher has to say. */
export function planList(plan: PlanAnswer, words: Words): HTMLElement {
  const notes = plan.notes.map((note) => el("li", {}, ...told(words.say(note))));
  return el(
    "div",
    {},
    el("p", { class: "sl-starts" }, startsText(plan, words)),
    notes.length ? el("ul", { class: "sl-notes" }, ...notes) : null,
  );
}

/** `starts now: 2 of 2 slots are free`, in the reader's language. */
export function startsText(plan: PlanAnswer, words: Words): string {
  const { position, capacity, spec } = plan;
  if (capacity?.quotas) {
    const waits = plan.notes.some((note) => note.startsWith(WAIT));
    return waits ? words.__("would wait, see below") : words.__("starts now: the cluster has room for it");
  }
  if (position === null || !capacity) return words.__("not known yet: the launcher does not answer");
  if (position > 1) {
    return words._n("starts behind %1 job that waits", "starts behind %1 jobs that wait", position - 1);
  }
  const pool = poolOf(spec, capacity);
  if (pool.free >= pool.needed) return words.__("starts now: %1", freeText(pool, words));
  return words.__("next in line: %1", freeText(pool, words));
}

/** What is free of what a job takes: `1 of 2 slots are free`. */
export function freeText(pool: { kind: string; free: number; total: number }, words: Words): string {
  if (pool.kind === "gpus")
    return words._n("%2 of %1 GPU is free", "%2 of %1 GPUs are free", pool.total, pool.free);
  if (pool.kind === "cores") {
    return words._n("%2 of %1 core is free", "%2 of %1 cores are free", pool.total, pool.free);
  }
  if (pool.kind === "slots") {
    return words._n("%2 of %1 slot is free", "%2 of %1 slots are free", pool.total, pool.free);
  }
  return words._n(
    "%2 of %1 slice %3 is free",
    "%2 of %1 slices %3 are free",
    pool.total,
    pool.free,
    pool.kind,
  );
}

/** The pool that a job of that size is taken from, and how much of it. */
export function poolOf(
  spec: { workers: number; gpus_per_worker: number; slice: string | null },
  capacity: Capacity,
): { kind: string; free: number; total: number; needed: number } {
  if (spec.slice) {
    const slice = capacity.slices.find((item) => item.name === spec.slice);
    return { kind: spec.slice, free: slice?.free ?? 0, total: slice?.total ?? 0, needed: 1 };
  }
  if (spec.gpus_per_worker) {
    return { ...capacity.gpus, kind: "gpus", needed: spec.workers * spec.gpus_per_worker };
  }
  return { ...capacity.slots, kind: capacity.quotas ? "cores" : "slots", needed: spec.workers };
}

function codeText(travels: Travels, words: Words): Child[] {
  const { branch, commit, dirty_files } = travels.code;
  const head = el("code", {}, `${branch || words.__("detached")} @ ${commit.slice(0, 7)}`);
  if (!dirty_files) return [head];
  return [head, " ", words._n("+ %1 uncommitted file", "+ %1 uncommitted files", dirty_files)];
}

function dataText(rows: readonly DataRow[], words: Words): Child[] {
  if (!rows.length) return [el("span", { class: "sl-dim" }, words.__("none tracked by DVC"))];
  return rows.map((row) => {
    const version = row.md5.length > 12 ? `${row.md5.slice(0, 8)}…` : row.md5;
    const files = words._n("%1 file", "%1 files", row.nfiles);
    const where = row.proved
      ? words.__("all in remote %1", row.remote)
      : words.__("not proved to be in remote %1", row.remote);
    return el(
      "p",
      { class: row.proved ? "sl-data" : "sl-data sl-warning" },
      el("code", {}, row.path),
      ` ${[version, files, sizeText(row.size_bytes), where].join(", ")}${row.proved ? " ✓" : ""}`,
    );
  });
}

function packagesText(travels: Travels, words: Words): Child[] {
  return [words.__("%1 pinned", String(travels.packages.pinned))];
}

function uploadText(upload: Travels["code"]["to_upload"], words: Words): string {
  if (upload === null || upload === undefined) return "";
  const files = typeof upload === "number" ? upload : upload.files;
  if (!files) return words.__("nothing to upload");
  const counted = words._n("%1 file to upload", "%1 files to upload", files);
  return typeof upload === "number" ? counted : `${counted} (${sizeText(upload.bytes)})`;
}
