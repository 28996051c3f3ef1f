/** The first line of a card: state, name, size and time; the buttons that fit the state. */

import { el } from "../elements";
import { clockText, durationText } from "../figures";
import { elapsed, isSuspended, isSuspending, sentence, statusClass, statusWord } from "../sentences";
import { isTerminal, type RunView } from "../types";
import type { Words } from "../words";

export interface Actions {
  logs(): void;
  cancel(): Promise<void>;
  suspend(): Promise<void>;
  retry(): Promise<void>;
}

export class Head {
  readonly node = el("div", { class: "sl-head" });
  /** One sentence; read out when the status changes, not at every step. */
  readonly sentence = el("p", { class: "sl-sentence" });
  readonly announced = el("span", { class: "sl-unseen", role: "status" });
  private readonly state = el("span", { class: "sl-state" });
  private readonly word = el("span");
  private readonly name = el("span", { class: "sl-name" });
  private readonly facts = el("span", { class: "sl-facts sl-dim" });
  private readonly buttons = el("span", { class: "sl-buttons" });
  private readonly logs: HTMLButtonElement;
  private readonly cancel: HTMLButtonElement;
  private readonly suspend: HTMLButtonElement;
  private readonly retry: HTMLButtonElement;
  private readonly sure: HTMLElement;
  private view: RunView | null = null;
  private told = "";
  private may = true;
  private busy = false;

  constructor(
    private readonly words: Words,
    private readonly actions: Actions,
  ) {
    this.state.append(el("span", { class: "sl-dot", "aria-hidden": "true" }), this.word);
    this.logs = el("button", { type: "button", "aria-expanded": "false", onclick: () => actions.logs() }, words.__("Logs"));
    this.cancel = el("button", { type: "button", onclick: () => this.ask(true) }, words.__("Cancel"));
    this.suspend = el("button", { type: "button", onclick: () => this.begin(() => actions.suspend()) }, words.__("Suspend"));
    this.suspend.title = words.__("End it for now, with time to save a checkpoint; its GPUs are free meanwhile");
    this.retry = el("button", { type: "button", onclick: () => this.begin(() => actions.retry()) }, words.__("Retry"));
    this.sure = this.question();
    this.buttons.append(this.logs, this.retry, this.suspend, this.cancel, this.sure);
    this.node.append(this.state, this.name, this.facts, el("span", { class: "sl-grow" }), this.buttons);
  }

  update(view: RunView): void {
    this.view = view;
    this.state.className = `sl-state ${statusClass(view.status)}`;
    this.word.textContent = statusWord(view.status, this.words, view.reason);
    this.name.textContent = view.name;
    this.sentence.textContent = sentence(view, this.words);
    this.sentence.hidden = view.status === "FAILED" && view.failure !== null; // the failure says it, with a link
    if (isTerminal(view.status)) this.ask(false);
    this.announce(view);
    this.showButtons();
    this.tick();
  }

  /** The sentence again: points have come since the last view. */
  resay(view: RunView): void {
    this.sentence.textContent = sentence(view, this.words);
  }

  /** Brings the running time up to date. */
  tick(): void {
    if (this.view) this.facts.textContent = facts(this.view, this.words).join(" · ");
  }

  /** `may` is false while the launcher cannot be asked. Where it never may be, no button is shown at all. */
  allow(may: boolean, ever: boolean): void {
    this.may = may;
    this.buttons.hidden = !ever;
    this.showButtons();
  }

  showLogs(open: boolean): void {
    this.logs.setAttribute("aria-expanded", String(open));
  }

  private announce(view: RunView): void {
    const stamp = `${view.attempt}/${view.status}`;
    if (this.told && this.told !== stamp) this.announced.textContent = `${view.name}: ${sentence(view, this.words)}`;
    this.told = stamp;
  }

  private showButtons(): void {
    if (!this.view) return;
    const focused = this.buttons.contains(document.activeElement) ? document.activeElement : null;
    const over = isTerminal(this.view.status);
    this.retry.hidden = !over || this.view.status === "FINISHED";
    const suspended = isSuspended(this.view);
    this.retry.textContent = suspended ? this.words.__("Resume") : this.words.__("Retry");
    this.retry.className = suspended || this.view.status === "FAILED" ? "sl-main" : "";
    const ending = over || (this.view.status === "CANCELLING" && !isSuspending(this.view));
    this.cancel.hidden = ending || !this.sure.hidden;
    this.suspend.hidden = this.view.status !== "RUNNING" || !this.sure.hidden;
    const all = [this.retry, this.suspend, this.cancel];
    for (const button of all) button.disabled = !this.may || this.busy;
    // a button that goes or is disabled would leave the focus to the page
    const left = all.find((button) => button === focused && (button.hidden || button.disabled));
    if (left) this.logs.focus();
  }

  private question(): HTMLElement {
    const { words } = this;
    const yes = el("button", { type: "button", class: "sl-danger", onclick: () => this.sureToCancel() }, words.__("Cancel the run"));
    const no = el("button", { type: "button", onclick: () => this.ask(false) }, words.__("Keep it running"));
    const box = el("span", { class: "sl-sure", role: "group", "aria-label": words.__("Really cancel?"), hidden: true });
    box.addEventListener("keydown", (event) => event.key === "Escape" && this.ask(false));
    box.append(yes, no);
    return box;
  }

  private ask(on: boolean): void {
    if (this.sure.hidden === !on) return;
    const within = this.buttons.contains(document.activeElement);
    this.sure.hidden = !on;
    this.showButtons();
    const next = on ? this.sure.querySelector("button") : isUsable(this.cancel) ? this.cancel : this.logs;
    if (next && (on || within)) next.focus();
  }

  private sureToCancel(): void {
    this.ask(false);
    this.begin(() => this.actions.cancel());
  }

  /** What was pressed goes; the log is what there is to look at next. */
  private begin(action: () => Promise<void>): void {
    this.logs.focus();
    void this.run(action);
  }

  private async run(action: () => Promise<void>): Promise<void> {
    this.busy = true;
    this.showButtons();
    try {
      await action();
    } finally {
      this.busy = false;
      this.showButtons();
    }
  }
}

function isUsable(button: HTMLButtonElement): boolean {
  return !button.hidden && !button.disabled;
}

/** `2 workers × 8 GPUs`, `queue vision`, `attempt 2`, `12 min 31 s`. */
function facts(view: RunView, words: Words): string[] {
  const { spec } = view;
  const list = [sizeOf(view, words)];
  if (spec.queue && spec.queue !== "default") list.push(words.__("queue %1", spec.queue));
  if (view.attempt > 1) list.push(words.__("attempt %1", view.attempt));
  if (isSuspended(view) && view.ended) list.push(words.__("since %1", clockText(view.ended)));
  list.push(durationText(elapsed(view), words), view.run_id);
  return list;
}

function sizeOf({ spec }: RunView, words: Words): string {
  if (spec.slice) return words.__("slice %1", spec.slice);
  const workers = words._n("%1 worker", "%1 workers", spec.workers);
  if (!spec.gpus_per_worker) return words.__("%1 on CPU", workers);
  return `${workers} × ${words._n("%1 GPU", "%1 GPUs", spec.gpus_per_worker)}`;
}
