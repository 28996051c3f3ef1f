/** The tail of one rank's log, read by offset while it is open, in sight, and may still grow. */

import type { Api } from "../api";
import { el } from "../elements";
import { faultText } from "../faults";
import type { Disposer } from "../stream";
import { isTerminal, type RunView } from "../types";
import type { Words } from "../words";

const POLL_MS = 1500;
const TAIL_BYTES = 64 * 1024;
const MOST_CHARS = 400_000; // kept on the page; the whole log is behind the link

export class Log implements Disposer {
  readonly node: HTMLElement;
  private readonly rank: HTMLSelectElement;
  private readonly attempt: HTMLSelectElement;
  private readonly text: HTMLElement;
  private readonly said: HTMLElement;
  private readonly whole: HTMLAnchorElement;
  private view: RunView | null = null;
  private offset = -TAIL_BYTES;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private reading = 0;

  constructor(private readonly parts: { api: Api; words: Words }) {
    const { words } = parts;
    const restart = () => this.restart();
    this.rank = el("select", { onchange: restart });
    this.attempt = el("select", { onchange: restart });
    this.said = el("span", { class: "sl-dim" });
    this.whole = el("a", { target: "_blank", rel: "noopener" }, words.__("whole log"));
    this.text = el("pre", { class: "sl-log", role: "log", tabindex: 0, "aria-label": words.__("Log") });
    const head = el("div", { class: "sl-log-head" });
    head.append(el("label", {}, `${words.__("log of")} `, this.rank), el("label", {}, `${words.__("attempt")} `, this.attempt));
    head.append(this.said, this.whole);
    this.node = el("div", { class: "sl-log-box", hidden: true }, head, this.text);
  }

  get isOpen(): boolean {
    return !this.node.hidden;
  }

  update(view: RunView): void {
    const before = this.view;
    this.view = view;
    const ranks = view.ranks.length ? view.ranks.map((row) => String(row.rank)) : workers(view);
    offer(this.rank, [...ranks, "agent"], (rank) => this.nameOf(rank));
    offer(this.attempt, counted(view.attempt), (attempt) => attempt);
    if (before && before.attempt !== view.attempt) {
      this.attempt.value = String(view.attempt);
      this.restart();
    } else if (!before || before.status !== view.status) this.soon();
  }

  /** Opens at a rank (the one chosen last, when none is named). */
  open(rank?: number): void {
    this.node.hidden = false;
    if (rank !== undefined) this.rank.value = String(rank);
    this.restart();
  }

  close(): void {
    this.node.hidden = true;
    clearTimeout(this.timer);
  }

  dispose(): void {
    this.close();
    this.reading += 1;
  }

  private restart(): void {
    this.offset = -TAIL_BYTES;
    this.text.textContent = "";
    this.soon();
  }

  private soon(): void {
    clearTimeout(this.timer);
    if (this.isOpen && this.view) void this.read();
  }

  private async read(): Promise<void> {
    const { view } = this;
    if (!view) return;
    const turn = ++this.reading;
    const base = `api/jobs/${view.run_id}/logs?rank=${this.rank.value}&attempt=${this.attempt.value}`;
    this.whole.href = this.parts.api.url(base);
    try {
      const asked = this.offset;
      if (!document.hidden) {
        const { text, next } = await this.parts.api.text(`${base}&offset=${asked}`);
        if (turn !== this.reading) return;
        this.offset = next;
        this.append(asked < 0 && next > TAIL_BYTES ? text.slice(text.indexOf("\n") + 1) : text);
      }
      this.tell();
    } catch (error) {
      if (turn !== this.reading) return;
      this.said.textContent = faultText(error);
    }
    const over = this.attempt.value !== String(view.attempt) || (this.view && isTerminal(this.view.status) && this.view.tracked);
    if (this.isOpen && !over) this.timer = setTimeout(() => void this.read(), POLL_MS);
  }

  private append(text: string): void {
    if (!text) return;
    const pane = this.text;
    const atEnd = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 24;
    pane.append(text);
    if ((pane.textContent ?? "").length > MOST_CHARS) pane.textContent = (pane.textContent ?? "").slice(-MOST_CHARS / 2);
    if (atEnd) pane.scrollTop = pane.scrollHeight;
  }

  private tell(): void {
    const { words } = this.parts;
    this.said.textContent = this.text.textContent ? "" : words.__("nothing printed yet");
  }

  private nameOf(rank: string): string {
    const { words } = this.parts;
    return rank === "agent" ? words.__("the agent") : words.__("rank %1", rank);
  }
}

function offer(select: HTMLSelectElement, values: string[], name: (value: string) => string): void {
  if (select.length === values.length) return;
  const { value } = select;
  select.replaceChildren(...values.map((each) => el("option", { value: each }, name(each))));
  select.value = values.includes(value) ? value : values.length && values.at(-1) !== "agent" ? (values.at(-1) ?? "") : values[0];
}

function counted(count: number): string[] {
  return Array.from({ length: count }, (_, index) => String(index + 1));
}

function workers(view: RunView): string[] {
  return Array.from({ length: Math.max(view.spec.workers, 1) }, (_, index) => String(index));
}
