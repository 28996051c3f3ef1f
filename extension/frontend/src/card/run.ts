/** One card: its parts in order, and what each of them is told when something happens. */

import { el, keepKeys } from "../elements";
import { faultText } from "../faults";
import type { Disposer } from "../stream";
import { type Bundle, isTerminal, type RunView } from "../types";
import type { CardParts } from "./card";
import { Charts } from "./charts";
import { makeFailure } from "./failure";
import { type Action, Follower, type Standing } from "./follower";
import { Head } from "./head";
import { Log } from "./log";
import { makeAttempts, makeOutputs, type Section } from "./outputs";
import { makeFoot, makeMetrics, makeNotice } from "./pieces";
import { makeScale, type Scale } from "./scale";
import { makeSteps } from "./steps";
import { makeStrip } from "./strip";
import { makeVersions } from "./versions";

const TICK_MS = 1000;
const SETTLE_MS = 3000; // from the end to the saving: the last points and the models may still come
const SETTLE_TRIES = 5; // for a tracker that does not say that it has everything

export class RunCard implements Disposer {
  readonly node: HTMLElement;
  private readonly pieces: ReturnType<typeof makePieces>;
  private readonly charts: Charts;
  private readonly log: Log;
  private readonly head: Head;
  private readonly follower: Follower;
  private readonly theme: MutationObserver;
  private readonly ticking: ReturnType<typeof setInterval>;
  private view: RunView | null = null;
  private asOf: number | null = null;
  private standing: Standing = "connecting";
  private saving: ReturnType<typeof setTimeout> | undefined;
  private savedState = "";

  constructor(
    private readonly runId: string,
    private readonly parts: CardParts,
  ) {
    const { api, words, feed } = parts;
    this.head = new Head(words, {
      logs: () => (this.log.isOpen ? this.closeLog() : this.openLog()),
      cancel: () => this.act("cancel"),
      suspend: () => this.act("suspend"),
      retry: () => this.act("retry"),
    });
    this.charts = new Charts(runId, { api, words });
    this.charts.ondraw = () => this.count();
    this.log = new Log({ api, words });
    const scale = makeScale(words, (workers) => this.act("scale", { workers }));
    this.pieces = makePieces(parts, { openLog: (rank) => this.openLog(rank), scale });
    this.node = layOut({ runId, head: this.head, charts: this.charts, log: this.log, pieces: this.pieces });
    this.follower = new Follower(runId, { api, feed, listener: this.listener() });
    this.theme = new MutationObserver(() => this.charts.recolour());
    this.theme.observe(document.body, { attributeFilter: ["data-jp-theme-name", "data-jp-theme-light"] });
    this.ticking = setInterval(() => this.tick(), TICK_MS);
    this.stand("connecting", "");
  }

  start(): void {
    void this.follower.start();
  }

  /** What lies in the notebook is shown before anything is asked. */
  startSaved(bundle: Bundle): void {
    this.showSaved(bundle);
    this.start();
  }

  /** Nothing will be asked. */
  showStill(bundle: Bundle): void {
    this.showSaved(bundle);
    this.stand("still", "");
  }

  /** A view of now: only its curves are asked for. */
  startFresh(view: RunView): void {
    this.follower.begin(structuredClone(view));
    this.follower.watch();
  }

  dispose(): void {
    clearInterval(this.ticking);
    clearTimeout(this.saving);
    this.theme.disconnect();
    this.follower.dispose();
    this.charts.dispose();
    this.log.dispose();
  }

  private showSaved(bundle: Bundle): void {
    if (isTerminal(bundle.view.status)) this.savedState = stateOf(bundle.view);
    this.charts.take(bundle.series);
    this.follower.begin(structuredClone(bundle.view));
    this.asOf = Math.max(bundle.view.created, ...bundle.view.history.map((change) => change.time));
  }

  private listener(): ConstructorParameters<typeof Follower>[1]["listener"] {
    return {
      view: (view) => this.show(view),
      points: (batch) => this.charts.add(batch),
      reload: () => this.charts.reload(),
      standing: (standing, message) => this.stand(standing, message),
    };
  }

  private show(view: RunView): void {
    this.view = view;
    this.asOf = Date.now() / 1000;
    this.node.dataset.status = view.status;
    this.node.setAttribute("aria-label", this.parts.words.__("Run %1", view.name));
    this.node.classList.toggle("sl-over", isTerminal(view.status));
    this.parts.host?.named?.(view);
    this.head.update(view);
    this.log.update(view);
    for (const piece of Object.values(this.pieces.updated)) piece.update(view);
    this.charts.offer(Object.keys(view.latest)).catch(() => undefined); // away: told by the stream, read again then
    if (isTerminal(view.status)) this.saveSoon(view);
  }

  private stand(standing: Standing, message: string): void {
    this.standing = standing;
    this.node.dataset.connection = standing;
    if (standing === "gone" && !this.view) this.node.setAttribute("aria-label", this.parts.words.__("Run %1", this.runId));
    const ever = standing !== "gone" && standing !== "still";
    this.node.classList.toggle("sl-saved", !ever); // the style hides what would have to be asked for
    this.head.allow(ever && standing !== "away", ever);
    this.pieces.updated.strip.allow(ever);
    this.pieces.updated.scale.allow(ever && standing !== "away");
    this.pieces.notice.tell(standing, message, this.view ? this.asOf : null);
  }

  /** Times move on while the page is looked at. */
  private tick(): void {
    if (document.hidden || !this.view) return;
    if (this.standing === "live") this.asOf = Date.now() / 1000;
    if (isTerminal(this.view.status)) return;
    this.head.tick();
    this.pieces.updated.steps.tick();
    this.pieces.updated.metrics.tick();
    this.pieces.updated.strip.update(this.view);
    this.pieces.updated.foot.update(this.view);
  }

  private count(): void {
    const [main] = this.charts.keys();
    this.node.dataset.points = String(main === undefined ? 0 : this.charts.curves.count(main));
    if (this.view?.status === "RUNNING") this.head.resay(this.view);
  }

  private openLog(rank?: number): void {
    this.log.open(rank ?? this.view?.failure?.rank ?? undefined);
    this.head.showLogs(true);
  }

  private closeLog(): void {
    this.log.close();
    this.head.showLogs(false);
  }

  private async act(action: Action, body?: object): Promise<void> {
    const { fault } = this.pieces;
    fault.hidden = true;
    try {
      await this.follower.act(action, body);
    } catch (error) {
      fault.textContent = faultText(error);
      fault.hidden = false;
    }
  }

  /** Once per end that was seen here: an output that already shows it stays as it is. */
  private saveSoon(view: RunView, tries = SETTLE_TRIES): void {
    const state = stateOf(view);
    if (!this.parts.host?.saved || state === this.savedState) return;
    clearTimeout(this.saving);
    this.saving = setTimeout(() => {
      const newest = this.view ?? view;
      if (!newest.tracked && newest.tracker !== "none" && tries > 0) this.saveSoon(newest, tries - 1);
      else void this.save(state);
    }, SETTLE_MS);
  }

  private async save(state: string): Promise<void> {
    try {
      const bundle = await this.parts.api.get<object>(`card/${this.runId}`);
      this.savedState = state;
      this.parts.host?.saved?.(bundle);
    } catch {
      // away: the next view of this run, or the next opening of the notebook, tries again
    }
  }
}

/** What of an end a saved output must show. */
function stateOf(view: RunView): string {
  return `${view.attempt}/${view.status}/${view.models.length}`;
}

interface Pieces {
  notice: ReturnType<typeof makeNotice>;
  fault: HTMLElement;
  /** Told of every view. */
  updated: {
    steps: ReturnType<typeof makeSteps>;
    failure: Section;
    versions: Section;
    strip: ReturnType<typeof makeStrip>;
    scale: Scale;
    attempts: Section;
    metrics: ReturnType<typeof makeMetrics>;
    outputs: Section;
    foot: ReturnType<typeof makeFoot>;
  };
}

function makePieces(parts: CardParts, own: { openLog: (rank: number) => void; scale: Scale }): Pieces {
  const { words, feed, host } = parts;
  const jump = host?.openCell ? (file: string, cell: number, line: number) => host.openCell?.(file, cell, line) : null;
  return {
    notice: makeNotice(words, () => feed.again()),
    fault: el("p", { class: "sl-wrong", role: "alert", hidden: true }),
    updated: {
      steps: makeSteps(words),
      failure: makeFailure(words, jump),
      versions: makeVersions(parts),
      strip: makeStrip(words, own.openLog),
      scale: own.scale,
      attempts: makeAttempts(parts),
      metrics: makeMetrics(words),
      outputs: makeOutputs(parts),
      foot: makeFoot(words),
    },
  };
}

interface Layout {
  runId: string;
  head: Head;
  charts: Charts;
  log: Log;
  pieces: Pieces;
}

function layOut({ runId, head, charts, log, pieces }: Layout): HTMLElement {
  const { steps, failure, versions, strip, scale, attempts, metrics, outputs, foot } = pieces.updated;
  const say = el("div", { class: "sl-say" }, head.sentence, failure.node, pieces.fault);
  const more = el("div", { class: "sl-mores" }, attempts.node, steps.more, metrics.node, outputs.node);
  const attributes = { class: "sl-card", role: "region", "data-run": runId };
  const node = el("div", attributes, head.node, head.announced, pieces.notice.node, steps.node, say, versions.node);
  const row = el("div", { class: "sl-row" }, strip.node, scale.node, foot.node);
  node.append(charts.node, row, log.node, more);
  keepKeys(node);
  return node;
}
