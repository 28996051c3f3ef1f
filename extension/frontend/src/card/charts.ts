/** The row of charts: which metrics, read when missing, drawn at most once per frame. */

import type { Api } from "../api";
import { el } from "../elements";
import type { Disposer } from "../stream";
import type { PointBatch, Series } from "../types";
import type { Words } from "../words";
import { Chart } from "./chart";
import { Curves } from "./curves";
import { chosenKeys, isOfRank } from "./keys";

const POINTS_PER_KEY = 300;

export class Charts implements Disposer {
  readonly node = el("div", { class: "sl-charts", hidden: true });
  readonly curves = new Curves();
  private charts: Chart[] = [];
  private picked: string[] | null = null; // what the reader chose, from the first choice on
  private known: string[] = [];
  private frame = 0;
  private readonly asked = new Set<string>(); // and not answered yet
  private reading: Promise<void> = Promise.resolve(); // the newest one under way
  private wasDrawn: (() => void) | null = null;

  constructor(
    private readonly runId: string,
    private readonly parts: { api: Api; words: Words },
  ) {}

  /** Called after each drawing, for counters beside the charts. */
  set ondraw(call: () => void) {
    this.wasDrawn = call;
  }

  /** The keys shown now, the main one first. */
  keys(): string[] {
    return this.charts.map((chart) => chart.key);
  }

  /** Takes note of what was logged; new keys may fill empty places. Resolves when their points are there. */
  async offer(keys: string[]): Promise<void> {
    this.known = [...new Set([...this.known, ...keys.filter((key) => !isOfRank(key))])].sort();
    const shown = this.picked ?? chosenKeys(this.known);
    const missing = shown.filter((key) => !this.curves.has(key) && !this.asked.has(key));
    this.arrange(shown);
    if (missing.length) await this.read(missing);
  }

  /** Draws a saved or answered set of curves at once. */
  take(series: Series[]): void {
    this.curves.replace(series);
    void this.offer(this.curves.keys());
    this.draw();
  }

  add(batch: PointBatch): void {
    const fresh = batch.rank === 0 ? batch.points.map(([key]) => key).filter((key) => !this.known.includes(key)) : [];
    if (fresh.length) this.known = [...new Set([...this.known, ...fresh])].sort();
    if (fresh.length && !this.picked) this.arrange(chosenKeys(this.known));
    if (this.curves.add(batch, this.keys())) this.later();
  }

  /** Reads the shown curves again: points may have been missed. Not while they are read: what is asked first is seen first. */
  async reload(): Promise<void> {
    await this.reading.catch(() => undefined);
    if (this.charts.length) await this.read(this.keys());
  }

  recolour(): void {
    for (const chart of this.charts) chart.recolour();
  }

  dispose(): void {
    cancelAnimationFrame(this.frame);
    for (const chart of this.charts) chart.dispose();
    this.charts = [];
  }

  private read(keys: string[]): Promise<void> {
    this.reading = this.ask(keys);
    return this.reading;
  }

  private async ask(keys: string[]): Promise<void> {
    const names = keys.map(encodeURIComponent).join(",");
    const path = `api/jobs/${this.runId}/series?keys=${names}&attempt=all&rank=0&points=${POINTS_PER_KEY}`;
    for (const key of keys) this.asked.add(key);
    try {
      const { series } = await this.parts.api.get<{ series: Series[] }>(path);
      this.curves.replace(series);
      this.later();
    } finally {
      for (const key of keys) this.asked.delete(key);
    }
  }

  private arrange(shown: string[]): void {
    if (shown.join("\n") !== this.keys().join("\n")) {
      for (const chart of this.charts) chart.dispose();
      this.charts = shown.map((key, place) => this.make(key, place));
      this.node.replaceChildren(...this.charts.map((chart) => chart.node));
      this.node.hidden = shown.length === 0;
      this.later();
    }
    for (const chart of this.charts) chart.offer(this.known);
  }

  private make(key: string, place: number): Chart {
    const { words } = this.parts;
    const choose = (wanted: string) => {
      this.picked = this.keys().map((shown, at) => (at === place ? wanted : shown));
      void this.offer([]).catch(() => undefined); // away: the card says so, and reads again when it is back
      (this.node.children[place]?.querySelector("select") as HTMLSelectElement | null)?.focus();
    };
    return new Chart(key, { words, curves: this.curves, choose });
  }

  private later(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  private draw(): void {
    for (const chart of this.charts) chart.draw();
    this.wasDrawn?.();
  }
}
