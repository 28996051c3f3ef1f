/** The points a card holds: read from the launcher in one go, then lengthened by the stream. */

import type { Figure, Point, PointBatch, Series } from "../types";

const MOST_POINTS = 1200; // held per curve while the stream adds to it; more than a chart has pixels

/** One line of a chart. `values[i]` is null where NaN or an infinity was logged: a gap. */
export interface Curve {
  attempt: number;
  steps: number[];
  values: (number | null)[];
  odd: number;
}

interface Kept {
  series: Series;
  odd: number;
}

/** Points of rank 0 by key and attempt. */
export class Curves {
  private readonly kept = new Map<string, Kept>();
  private readonly announced = new Set<string>();

  /** Takes what the launcher answered in place of what is known of these curves. */
  replace(found: Series[]): void {
    for (const series of found) {
      if (series.rank !== 0) continue;
      const name = nameOf(series.key, series.attempt);
      const old = this.kept.get(name);
      this.announced.add(series.key);
      this.kept.set(name, { series: copied(series), odd: oddOf(series.points) });
      this.catchUp(series, old);
    }
  }

  /** Adds what the stream brings; true when one of `keys` has grown. Points already held are skipped. */
  add(batch: PointBatch, keys: string[]): boolean {
    if (batch.rank !== 0) return false;
    let grown = false;
    for (const [key, step, time, value] of batch.points) {
      this.announced.add(key);
      if (keys.includes(key)) grown = this.append(key, batch.attempt, [step, time, value]) || grown;
    }
    return grown;
  }

  /** Every key heard of. */
  keys(): string[] {
    return [...this.announced];
  }

  has(key: string): boolean {
    return [...this.kept.values()].some(({ series }) => series.key === key);
  }

  /** All that was logged of a key, drawn or not. */
  count(key: string): number {
    return this.of(key).reduce((sum, { series }) => sum + series.count, 0);
  }

  last(key: string): Point | undefined {
    return this.of(key).at(-1)?.series.points.at(-1);
  }

  curves(key: string): Curve[] {
    return this.of(key).map(({ series, odd }) => ({ attempt: series.attempt, odd, ...byStep(series.points) }));
  }

  private of(key: string): Kept[] {
    const found = [...this.kept.values()].filter(({ series }) => series.key === key);
    return found.sort((a, b) => a.series.attempt - b.series.attempt);
  }

  /** What came by the stream while the answer was on its way. */
  private catchUp(series: Series, old: Kept | undefined): void {
    for (const point of old?.series.points ?? []) this.append(series.key, series.attempt, point);
  }

  private append(key: string, attempt: number, point: Point): boolean {
    const name = nameOf(key, attempt);
    const kept = this.kept.get(name) ?? { series: { key, attempt, rank: 0, count: 0, points: [] }, odd: 0 };
    const last = kept.series.points.at(-1);
    if (last && !isLater(point, last)) return false;
    this.kept.set(name, kept);
    kept.series.points.push(point);
    kept.series.count += 1;
    if (!isFinite(point[2])) kept.odd += 1;
    if (kept.series.points.length > MOST_POINTS) kept.series.points = thinned(kept.series.points, MOST_POINTS / 2);
    return true;
  }
}

/** About `most` of the points: of each stretch the first, lowest, highest and last, so that no spike is lost. */
export function thinned(points: Point[], most: number): Point[] {
  const width = Math.ceil((points.length * 4) / most);
  const result: Point[] = [];
  for (let start = 0; start < points.length; start += width) {
    const part = points.slice(start, start + width);
    const finite = part.filter((point) => isFinite(point[2]));
    const odd = part.find((point) => !isFinite(point[2]));
    const ends = finite.length ? extremes(finite) : [];
    const chosen = new Set([part[0], ...ends, ...(odd ? [odd] : []), part[part.length - 1]]);
    result.push(...part.filter((point) => chosen.has(point)));
  }
  return result;
}

function extremes(points: Point[]): Point[] {
  let [low, high] = [points[0], points[0]];
  for (const point of points) {
    if (Number(point[2]) < Number(low[2])) low = point;
    if (Number(point[2]) > Number(high[2])) high = point;
  }
  return [low, high];
}

function nameOf(key: string, attempt: number): string {
  return `${attempt}/${key}`;
}

function copied(series: Series): Series {
  return { ...series, points: [...series.points] };
}

function oddOf(points: Point[]): number {
  return points.filter((point) => !isFinite(point[2])).length;
}

function isFinite(value: Figure): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

function isLater([step, time]: Point, [lastStep, lastTime]: Point): boolean {
  return time > lastTime || (time === lastTime && step > lastStep);
}

/** Steps ascending and each once (the value logged last counts), as a chart needs them. */
function byStep(points: Point[]): { steps: number[]; values: (number | null)[] } {
  const found = new Map<number, number | null>();
  for (const [step, , value] of points) found.set(step, isFinite(value) ? value : null);
  const steps = [...found.keys()].sort((a, b) => a - b);
  return { steps, values: steps.map((step) => found.get(step) ?? null) };
}
