/** All my jobs, newest first and live, also those promoted elsewhere. */

import { ApiError } from "../api";
import { el, setText } from "../elements";
import { faultBox, faultFrom, isPassing, oneLine } from "../faults";
import type { Page } from "../page";
import type { Disposer } from "../stream";
import { isTerminal, type RunView } from "../types";
import type { Words } from "../words";
import { type Row, makeRow } from "./row";
import { type Group, Rows, statusesOf } from "./rows";

const PAGE = 30;
const TICK_MILLISECONDS = 1000;
const AGAIN_MILLISECONDS = 2000;
const GROUPS: Group[] = ["all", "active", "suspended", "done", "failed", "cancelled"];

/** The browser's own notifications, where there are any. */
export interface Notices {
  state(): "ask" | "on" | "blocked" | "none";
  /** Asks the browser; call it on a click only. */
  ask(): Promise<void>;
}

export interface JobsParts extends Page {
  openRun(view: RunView): void;
  notices?: Notices;
}

export function mountJobs(node: HTMLElement, parts: JobsParts): Disposer {
  const list = new JobList(node, parts);
  void list.load();
  return { dispose: () => list.dispose() };
}

class JobList {
  private readonly words: Words;
  private readonly rows = new Rows();
  private readonly drawn = new Map<string, Row>();
  private readonly at: ReturnType<typeof makePieces>;
  private readonly stream: Disposer;
  private readonly ticking: ReturnType<typeof setInterval>;
  private retrying: ReturnType<typeof setTimeout> | undefined;
  private group: Group = "all";
  private loading = false;
  private complete = false;
  private last = "";
  private turn = 0;
  private away = "";

  constructor(
    private readonly node: HTMLElement,
    private readonly parts: JobsParts,
  ) {
    this.words = parts.words;
    this.at = makePieces(parts.words);
    this.at.text.addEventListener("input", () => this.draw());
    this.at.status.addEventListener("change", () => this.choose(this.at.status.value as Group));
    this.at.more.addEventListener("click", () => void this.load(true));
    this.at.notify.addEventListener("click", () => void this.askNotices());
    node.replaceChildren(layout(this.at, parts.words));
    this.stream = parts.feed.watchAll({
      run: (view) => this.seen(view),
      reset: () => void this.load(),
      connection: (state, message) => this.connected(state, message),
    });
    this.ticking = setInterval(() => this.tick(), TICK_MILLISECONDS);
    this.drawNotices();
    this.draw();
  }

  /** The first page, or the next one. */
  async load(more = false): Promise<void> {
    const turn = ++this.turn;
    clearTimeout(this.retrying);
    this.loading = true;
    this.draw();
    try {
      const page = await this.parts.api.get<{ jobs: RunView[] }>(this.query(more));
      if (turn !== this.turn) return;
      page.jobs.forEach((view) => this.rows.put(view));
      this.last = page.jobs[page.jobs.length - 1]?.run_id ?? this.last;
      this.complete = page.jobs.length < PAGE;
      this.at.fault.replaceChildren();
    } catch (error) {
      if (turn !== this.turn) return;
      this.failed(error);
    }
    this.loading = false;
    this.draw();
  }

  dispose(): void {
    this.turn++;
    this.stream.dispose();
    clearInterval(this.ticking);
    clearTimeout(this.retrying);
    this.node.replaceChildren();
  }

  private query(more: boolean): string {
    const statuses = statusesOf(this.group);
    const asked = [`limit=${PAGE}`];
    if (statuses) asked.push(`status=${statuses}`);
    if (more && this.last) asked.push(`before=${encodeURIComponent(this.last)}`);
    return `api/jobs?${asked.join("&")}`;
  }

  private failed(error: unknown): void {
    const starting = error instanceof ApiError && error.code === "launcher-starting";
    const fault = faultFrom(error, this.words);
    this.at.fault.replaceChildren(starting ? el("p", { class: "sl-dim" }, oneLine(fault)) : faultBox(fault));
    if (isPassing(error)) this.retrying = setTimeout(() => void this.load(), AGAIN_MILLISECONDS);
  }

  private choose(group: Group): void {
    this.group = group;
    this.last = "";
    this.complete = false;
    void this.load();
  }

  private seen(view: RunView): void {
    this.rows.put(view);
    this.draw();
  }

  private connected(state: "live" | "reconnecting" | "away", message?: string): void {
    const before = this.away;
    const { words } = this;
    const lost = message || words.__("The launcher cannot be reached; what is shown may be old.");
    this.away = state === "live" ? "" : state === "away" ? lost : words.__("Reconnecting…");
    if (before && !this.away) void this.load();
    else this.draw();
  }

  private draw(): void {
    const shown = this.rows.shown(this.group, this.at.text.value);
    const wanted = new Set(shown.map((view) => view.run_id));
    for (const [runId, row] of this.drawn) {
      if (!wanted.has(runId)) {
        row.node.remove();
        this.drawn.delete(runId);
      }
    }
    shown.forEach((view, index) => this.place(view, index));
    this.at.more.hidden = this.complete || !this.rows.size;
    this.at.more.disabled = this.loading;
    this.say(shown.length);
  }

  private place(view: RunView, index: number): void {
    const row = this.drawn.get(view.run_id) ?? this.fresh(view);
    row.update(this.rows.get(view.run_id) ?? view);
    const there = this.at.list.children[index];
    if (there !== row.node) this.at.list.insertBefore(row.node, there ?? null);
  }

  private fresh(view: RunView): Row {
    const row = makeRow(view, { words: this.words, open: this.parts.openRun });
    this.drawn.set(view.run_id, row);
    return row;
  }

  /** One sentence above the list; it changes with what is going on only, since it is read aloud. */
  private say(shown: number): void {
    const { words } = this;
    const filtered = this.group !== "all" || this.at.text.value.trim() !== "";
    let text = "";
    if (this.away) text = this.away;
    else if (this.loading && !shown) text = words.__("Loading the jobs…");
    else if (shown) text = words._n("%1 job", "%1 jobs", shown);
    else if (this.at.fault.childElementCount) text = "";
    else if (filtered) text = words.__("No job fits the filter.");
    else text = words.__("No job yet: open a notebook and press Promote in its toolbar.");
    setText(this.at.said, text);
  }

  private tick(): void {
    if (document.hidden || !this.node.isConnected) return;
    for (const [runId, row] of this.drawn) {
      const view = this.rows.get(runId);
      if (view && (!isTerminal(view.status) || Date.now() / 1000 - (view.ended ?? 0) < 7200)) row.tick();
    }
  }

  private async askNotices(): Promise<void> {
    await this.parts.notices?.ask();
    this.drawNotices();
  }

  private drawNotices(): void {
    const { words } = this;
    const state = this.parts.notices?.state() ?? "none";
    this.at.notify.hidden = state !== "ask";
    const said = { ask: "", none: "", on: words.__("The browser tells you when a job ends."), blocked: "" };
    said.blocked = words.__("Notifications are blocked in the browser's settings of this page.");
    this.at.notified.textContent = said[state];
    this.at.notified.hidden = !said[state];
  }
}

function makePieces(words: Words) {
  const names: Record<Group, string> = {
    all: words.__("All"),
    active: words.__("Active"),
    suspended: words.__("Suspended"),
    done: words.__("Done"),
    failed: words.__("Failed"),
    cancelled: words.__("Cancelled"),
  };
  return {
    text: el("input", {
      type: "search",
      placeholder: words.__("Filter"),
      "aria-label": words.__("Filter the jobs"),
    }),
    status: el(
      "select",
      { "aria-label": words.__("Status") },
      ...GROUPS.map((group) => el("option", { value: group }, names[group])),
    ),
    said: el("p", { class: "sl-dim sl-said", role: "status" }),
    fault: el("div"),
    list: el("ul", { class: "sl-joblist", "aria-label": words.__("Jobs") }),
    more: el("button", { type: "button", class: "sl-more", hidden: true }, words.__("Load more")),
    notify: el("button", { type: "button", class: "sl-notify" }, words.__("Notify me when a job ends")),
    notified: el("p", { class: "sl-dim", hidden: true }),
  };
}

function layout(at: ReturnType<typeof makePieces>, words: Words): HTMLElement {
  return el(
    "section",
    { class: "sl-jobs", role: "region", "aria-label": words.__("Jobs") },
    el(
      "header",
      { class: "sl-head" },
      el("h2", {}, words.__("Jobs")),
      el("div", { class: "sl-filter" }, at.text, at.status),
    ),
    at.said,
    at.fault,
    at.list,
    el("footer", { class: "sl-foot" }, at.more, at.notify, at.notified),
  );
}
