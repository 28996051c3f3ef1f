/** One small chart: a line per attempt over the steps, the metric chosen by a select in its head. */

import uPlot from "uplot";

import { el } from "../elements";
import type { Disposer } from "../stream";
import type { Words } from "../words";
import type { Curve, Curves } from "./curves";
import { keyLabel, valueText } from "./keys";

const HEIGHT = 112;
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power); // steps of an axis of bytes
const LABEL_HEIGHT = 16; // above the lines: what begins an attempt is written there
const COLOURS = ["--sl-run", "--sl-ok", "--sl-wait", "--sl-bad"];

export interface ChartParts {
  words: Words;
  curves: Curves;
  /** The reader wants another metric in this place. */
  choose(key: string): void;
}

/** Draws what `curves` holds of `key` when told to; cheap enough for once per frame. */
export class Chart implements Disposer {
  readonly node: HTMLElement;
  private readonly select: HTMLSelectElement;
  private readonly value: HTMLElement;
  private readonly canvas: HTMLElement;
  private readonly note: HTMLElement;
  private readonly size: ResizeObserver;
  private plot: uPlot | null = null;
  private lines = 0;
  private begins: [number, number][] = [];

  constructor(
    public key: string,
    private readonly parts: ChartParts,
  ) {
    this.select = el("select", { class: "sl-key", onchange: () => this.parts.choose(this.select.value) });
    this.select.setAttribute("aria-label", parts.words.__("Metric of this chart"));
    this.value = el("span", { class: "sl-value" });
    this.canvas = el("div", { class: "sl-plot", role: "img" });
    this.note = el("p", { class: "sl-note sl-dim", hidden: true });
    this.node = el("div", { class: "sl-chart" }, el("div", { class: "sl-chart-head" }, this.select, this.value));
    this.node.append(this.canvas, this.note);
    this.size = new ResizeObserver(() => this.resize());
    this.size.observe(this.canvas);
  }

  /** The metrics to choose from. */
  offer(keys: string[]): void {
    const { select } = this;
    const all = keys.includes(this.key) ? keys : [this.key, ...keys];
    const same = all.length === select.length && all.every((key, index) => select.options[index].value === key);
    if (!same) select.replaceChildren(...all.map((key) => el("option", { value: key }, keyLabel(key, this.parts.words))));
    select.value = this.key;
  }

  draw(): void {
    const { words, curves } = this.parts;
    const drawn = curves.curves(this.key);
    const last = curves.last(this.key);
    this.value.textContent = last ? valueText(this.key, last[2], words) : "";
    this.tellOdd(drawn);
    const label = last
      ? words.__("%1: %2 at step %3", keyLabel(this.key, words), valueText(this.key, last[2], words), last[0])
      : words.__("%1: no point yet", keyLabel(this.key, words));
    this.canvas.setAttribute("aria-label", label);
    if (last || this.plot) this.plotLines(drawn);
  }

  /** Another theme: the canvas takes its colours anew. */
  recolour(): void {
    this.plot?.redraw(false, true);
  }

  dispose(): void {
    this.size.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }

  private tellOdd(drawn: Curve[]): void {
    const odd = drawn.reduce((sum, curve) => sum + curve.odd, 0);
    this.note.hidden = odd === 0;
    const { words } = this.parts;
    this.note.textContent = odd ? words._n("%1 value is NaN or infinite", "%1 values are NaN or infinite", odd) : "";
  }

  private plotLines(drawn: Curve[]): void {
    this.begins = drawn.slice(1).map((curve) => [curve.steps[0], curve.attempt]);
    const tables = drawn.map((curve) => [curve.steps, curve.values] as uPlot.AlignedData);
    const data = tables.length ? uPlot.join(tables) : ([[]] as unknown as uPlot.AlignedData);
    if (!this.plot || this.lines !== drawn.length) this.make(drawn.length, data);
    else this.plot.setData(data);
  }

  private make(lines: number, data: uPlot.AlignedData): void {
    this.plot?.destroy();
    this.lines = lines;
    const width = Math.max(this.canvas.clientWidth, 120);
    const colour = (name: string) => () => colourOf(this.canvas, name);
    const series = Array.from({ length: lines }, (_, index) => ({
      stroke: colour(COLOURS[index % COLOURS.length]),
      width: 1.6,
    }));
    const options: uPlot.Options = {
      width,
      height: HEIGHT,
      padding: [lines > 1 ? LABEL_HEIGHT : 8, 14, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => rangeOf(this.key, low, high) } },
      series: [{}, ...series],
      axes: this.axes(colour),
      hooks: { draw: [(plot) => this.markAttempts(plot)] },
    };
    this.plot = new uPlot(options, data, this.canvas);
  }

  private axes(colour: (name: string) => () => string): uPlot.Axis[] {
    const shared = { stroke: colour("--sl-dim"), font: "10px system-ui, sans-serif", ticks: { show: false } };
    const grid = { stroke: colour("--sl-line"), width: 1 };
    const short = (_: uPlot, values: number[]) => values.map((value) => shortText(this.key, value));
    const plain = (_: uPlot, steps: number[]) => steps.map((step) => shortText("", step));
    return [
      { ...shared, size: 18, gap: 2, space: 60, grid: { show: false }, values: plain },
      { ...shared, size: 44, gap: 3, space: 30, grid, values: short, ...(this.key.endsWith("_bytes") && { incrs: BINARY }) },
    ];
  }

  /** A dashed line where a new attempt begins. */
  private markAttempts(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio || 1;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colourOf(this.canvas, "--sl-wait");
    ctx.font = `${10 * scale}px system-ui, sans-serif`;
    ctx.setLineDash([3 * scale, 3 * scale]);
    let free = bbox.left;
    for (const [step, attempt] of this.begins) {
      const x = Math.round(plot.valToPos(step, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const text = this.parts.words.__("attempt %1", attempt);
      const width = ctx.measureText(text).width;
      const left = Math.max(bbox.left, Math.min(x, bbox.left + bbox.width - width));
      if (left < free) continue; // of attempts that begin close to each other the first is named
      ctx.fillText(text, left, bbox.top - 5 * scale);
      free = left + width + 6 * scale;
    }
    ctx.restore();
  }

  private resize(): void {
    const width = this.canvas.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }
}

/** The value of one of the card's own colour variables, as a canvas can use it. */
function colourOf(node: HTMLElement, name: string): string {
  return getComputedStyle(node).getPropertyValue(name).trim() || "#0969da";
}

/** Memory and throughput begin at zero, so that a wobble looks like neither a leak nor a stall; the rest fills the height. */
function rangeOf(key: string, low: number | null, high: number | null): uPlot.Range.MinMax {
  if (low === null || high === null) return [0, 1];
  if (/_(bytes|per_second)$/.test(key)) return [0, high > 0 ? high * 1.1 : 1];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

/** An axis label of at most six signs. */
function shortText(key: string, value: number): string {
  if (key.endsWith("_bytes")) return scaled(value, 1024, ["", "Ki", "Mi", "Gi", "Ti"]);
  if (Math.abs(value) >= 10_000) return scaled(value, 1000, ["", "k", "M", "G", "T"]);
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(0);
  return String(Number(value.toPrecision(3)));
}

function scaled(value: number, base: number, units: string[]): string {
  let [rest, step] = [value, 0];
  while (Math.abs(rest) >= base && step < units.length - 1) [rest, step] = [rest / base, step + 1];
  return Number(rest.toPrecision(3)) + units[step];
}
