/** The Promote panel of one notebook: what was found, what travels, how large, when it starts; then the run. */

import { type Host, mountCard } from "../card/card";
import { el, memo, setText } from "../elements";
import { faultBox, oneLine } from "../faults";
import type { Page } from "../page";
import type { Disposer } from "../stream";
import type { RunView } from "../types";
import type { Words } from "../words";
import { counted, findingList } from "./checked";
import { placeOf } from "./choice";
import { gangForm, showFault } from "./gang";
import { onDemand } from "./ondemand";
import { Session, type State } from "./session";
import { planList, travelsList, travelsSummary } from "./travels";

export interface PromoteParts extends Page {
  host?: Host;
  path: string;
  /** Saves the document if it must be; false when the user would not. */
  save(): Promise<boolean>;
  /** Shows a cell (from 0) and a line of it (from 1) in the notebook. */
  openCell(cell: number, line: number): void;
  submitted(view: RunView): void;
  openJobs?(view: RunView): void;
}

export interface PromoteHandle extends Disposer {
  /** The file was saved: it is checked again in a moment. */
  refresh(): void;
  /** The document was changed and is not what was checked. */
  edited(): void;
  /** The focus goes to the panel's heading. */
  focus(): void;
}

export function mountPromote(node: HTMLElement, parts: PromoteParts): PromoteHandle {
  const panel = new Panel(node, parts);
  void panel.session.open();
  return {
    refresh: () => panel.session.saved(),
    edited: () => panel.session.edited(),
    focus: () => panel.focus(),
    dispose: () => panel.dispose(),
  };
}

class Panel {
  readonly session: Session;
  private readonly words: Words;
  private readonly name: string;
  private readonly at: Pieces;
  private card: Disposer | null = null;
  private formTurn = 0;

  constructor(
    private readonly node: HTMLElement,
    private readonly parts: PromoteParts,
  ) {
    this.words = parts.words;
    this.name = parts.path.split("/").pop() ?? parts.path;
    this.at = makePieces(parts.words);
    this.session = new Session(parts, () => this.draw());
    this.at.submit.addEventListener("click", () => void this.session.submit());
    this.at.check.addEventListener("click", () => void this.session.checkAgain());
    this.at.body.append(
      el("div", {}, this.section(this.words.__("Checked"), this.at.checked), this.travelsSection()),
      el("div", {}, this.section(this.words.__("Gang"), this.at.gang), this.planSection()),
    );
    node.replaceChildren(this.whole());
    this.draw();
  }

  focus(): void {
    this.at.title.focus();
  }

  dispose(): void {
    this.session.dispose();
    this.card?.dispose();
    this.node.replaceChildren();
  }

  private whole(): HTMLElement {
    const title = this.words.__("Promote %1", this.name);
    setText(this.at.title, title);
    return el(
      "section",
      { class: "sl-promote", role: "region", "aria-label": title },
      el(
        "header",
        { class: "sl-head" },
        this.at.title,
        this.at.summary,
        el("div", { class: "sl-actions" }, this.at.submit, this.at.check),
        this.at.status,
        this.at.stale,
        this.at.outcome,
      ),
      this.at.run,
      this.at.body,
    );
  }

  private section(title: string, ...children: Node[]): HTMLElement {
    return el("section", { class: "sl-part" }, el("h3", {}, title), ...children);
  }

  private travelsSection(): HTMLElement {
    const title = el("h3", {}, this.words.__("Travels"), " ", this.at.travelsTitle);
    return el("section", { class: "sl-part" }, title, this.at.travels);
  }

  private planSection(): HTMLElement {
    return this.section(this.words.__("Plan"), this.at.plan, this.at.demand);
  }

  private draw(): void {
    const state = this.session.state;
    this.drawHead(state);
    this.drawChecked(this.session.findings(), state.checkFault, state.check, state.checking && !state.check);
    this.drawTravels(state.plan, state.planFault, state.check?.ok);
    const form = [formKey(state), this.formTurn].join();
    this.drawForm(form);
    this.drawPlan(
      form,
      state.plan,
      state.planFault,
      state.planning,
      state.check?.ok,
      state.context?.launcher,
      state.contextFault,
    );
    this.drawDemand(state.plan, state.planFault);
    this.drawOutcome(state.submitFault);
    this.drawRun(state.run);
  }

  private drawHead(state: State): void {
    const { words, session } = this;
    const why = session.hindrance();
    const { check } = state;
    const cells = check && travellingText(check.cells, words);
    const took = check && words.__("checked in %1 s", check.seconds.toFixed(1));
    setText(this.at.summary, [cells, took].filter(Boolean).join(" · "));
    setText(this.at.status, this.progress(state));
    this.at.status.classList.toggle("sl-why", why !== "" && !state.checking);
    setText(this.at.submit, state.submitting ? words.__("Submitting…") : words.__("Submit"));
    // stays focusable, so that a reader hears why it does nothing
    this.at.submit.setAttribute("aria-disabled", String(Boolean(why) || state.submitting));
    setText(
      this.at.stale,
      words.__("The notebook changed since it was checked; it is saved and checked when you submit."),
    );
    this.at.stale.hidden = !state.edited || state.run !== null;
    this.at.submit.hidden = this.at.check.hidden = this.at.body.hidden = state.run !== null;
    this.at.body.setAttribute("aria-busy", String(state.checking || state.planning));
  }

  /** What is being done right now, one thing at a time. */
  private progress(state: State): string {
    const { words } = this;
    if (state.submitting && state.lost) {
      return words.__("The connection was lost; sending the same promotion again. It makes one job only.");
    }
    if (state.submitting) return words.say(state.steps.at(-1)?.text ?? "") || words.__("Saving and sending…");
    if (state.run) return "";
    if (state.checking) return words.__("Checking…");
    if (state.planning) return words.__("Planning: snapshot and data are looked at…");
    return this.session.hindrance() || counted(this.session.findings(), words);
  }

  private readonly drawChecked = memo(() => {
    const { checkFault, check } = this.session.state;
    const { words } = this;
    if (checkFault) this.at.checked.replaceChildren(faultBox(checkFault));
    else if (!check) this.at.checked.replaceChildren(waiting(words.__("Reading the notebook…")));
    else this.at.checked.replaceChildren(findingList(this.session.findings(), words, this.parts.openCell));
  });

  private readonly drawTravels = memo(() => {
    const { plan, planFault, check } = this.session.state;
    const { words } = this;
    setText(this.at.travelsTitle, plan ? travelsSummary(plan.travels, words) : "");
    if (plan || planFault) this.at.travels.replaceChildren(travelsList(plan, planFault, words));
    else
      this.at.travels.replaceChildren(
        waiting(check && !check.ok ? words.__("Known once no error is left.") : "…"),
      );
  });

  private readonly drawForm = memo(() => {
    const { context, plan, check } = this.session.state;
    const restore = keepFocus(this.at.gang);
    const form = gangForm({
      choice: this.session.choice,
      context,
      capacity: plan?.capacity ?? context?.capacity ?? null,
      parameters: check?.parameters ?? [],
      notebook: this.name.replace(/\.ipynb$/, ""),
      words: this.words,
      chosen: (anew) => {
        if (anew) this.formTurn++;
        this.session.chosen();
      },
      secrets: async () => (await this.parts.api.get<{ secrets: string[] }>("api/secrets")).secrets,
    });
    this.at.gang.replaceChildren(form);
    restore();
  });

  private readonly drawPlan = memo(() => {
    const { plan, planFault, planning, check, context, contextFault } = this.session.state;
    const { words } = this;
    const form = this.at.gang.querySelector("form");
    const placed = form && showFault(form, planFault);
    const elsewhere = placed || (planFault && ["code", "data", "packages"].includes(placeOf(planFault)));
    this.at.plan.classList.toggle("sl-old", planning);
    if (planFault) this.at.plan.replaceChildren(elsewhere ? this.refusedNote() : faultBox(planFault));
    else if (plan) this.at.plan.replaceChildren(planList(plan, words));
    else if (check && !check.ok)
      this.at.plan.replaceChildren(waiting(words.__("Known once no error is left.")));
    else this.at.plan.replaceChildren(waiting(words.__("Made once the notebook is checked.")));
    const away = contextFault ? oneLine(contextFault) : context?.launcher === "up" ? "" : words.say(context?.message ?? "");
    if (away) this.at.plan.append(waiting(away));
  });

  private readonly drawDemand = memo(() => {
    const { plan, planFault } = this.session.state;
    const opened = [...this.at.demand.querySelectorAll("details[open] > summary")].map((node) => node.textContent);
    this.at.demand.replaceChildren();
    if (!plan || planFault) return;
    const manifest = plan.manifest ? JSON.stringify(plan.manifest, null, 2) : "";
    if (manifest) this.at.demand.append(onDemand(this.words.__("Manifest"), manifest, this.words));
    if (plan.script) this.at.demand.append(onDemand(this.words.__("Script"), plan.script, this.words));
    for (const fold of this.at.demand.querySelectorAll("details")) {
      fold.open = opened.includes(fold.querySelector("summary")?.textContent ?? ""); // what is read stays open
    }
  });

  private readonly drawOutcome = memo(() => {
    const fault = this.session.state.submitFault;
    this.at.outcome.replaceChildren(...(fault ? [faultBox(fault)] : []));
  });

  private readonly drawRun = memo(() => {
    const { run } = this.session.state;
    this.card?.dispose();
    this.card = null;
    this.at.run.hidden = run === null;
    this.at.run.replaceChildren();
    if (!run) return;
    const { words } = this;
    const place = el("div");
    const again = el("button", { type: "button" }, words.__("Promote again"));
    again.addEventListener("click", () => {
      this.focus(); // the button goes with the run
      void this.session.again();
    });
    const jobs = el("button", { type: "button" }, words.__("Open in jobs"));
    jobs.addEventListener("click", () => this.parts.openJobs?.(run));
    const title = el("h3", { tabindex: -1 }, words.__("Submitted"));
    const actions = el("div", { class: "sl-actions" }, this.parts.openJobs ? jobs : null, again);
    this.at.run.append(title, place, actions);
    this.card = mountCard(place, run, this.parts);
    title.focus();
  });

  private refusedNote(): HTMLElement {
    return waiting(this.words.__("Refused: see beside what it concerns."));
  }
}

/** The parts of the page that are filled as the session goes on. */
type Pieces = ReturnType<typeof makePieces>;

let panels = 0;

function makePieces(words: Words) {
  const status = el("p", { class: "sl-progress", role: "status", id: `sl-progress-${++panels}` });
  return {
    status,
    title: el("h2", { tabindex: -1 }),
    summary: el("p", { class: "sl-dim sl-summary" }),
    submit: el("button", { type: "button", class: "sl-main", "aria-describedby": status.id }),
    check: el("button", { type: "button" }, words.__("Check again")),
    stale: el("p", { class: "sl-stale", hidden: true }),
    checked: el("div"),
    travels: el("div"),
    travelsTitle: el("span", { class: "sl-dim" }),
    gang: el("div"),
    plan: el("div"),
    demand: el("div", { class: "sl-demand" }),
    outcome: el("div"),
    run: el("section", { class: "sl-run", hidden: true }),
    body: el("div", { class: "sl-columns" }),
  };
}

/** `8 of 9 code cells travel`. */
function travellingText({ travelling, code }: { travelling: number; code: number }, words: Words): string {
  return words._n("%2 of %1 code cell travels", "%2 of %1 code cells travel", code, travelling);
}

/** The form is built anew only when what can be chosen differs. */
function formKey({ context, plan, check }: State): string {
  const capacity = plan?.capacity ?? context?.capacity;
  return JSON.stringify([context?.presets, context?.queues, capacity, check?.parameters]);
}

function waiting(text: string): HTMLElement {
  return el("p", { class: "sl-dim" }, text);
}

/** Remembers which control of that name has the focus, and where its cursor stands. */
function keepFocus(within: HTMLElement): () => void {
  const focused = document.activeElement;
  const name = focused && within.contains(focused) ? focused.getAttribute("name") : null;
  const cursor =
    focused instanceof HTMLInputElement && focused.type === "text" ? focused.selectionStart : null;
  return () => {
    const again = name && within.querySelector<HTMLElement>(`[name="${CSS.escape(name)}"]`);
    if (!again) return;
    again.focus();
    if (again instanceof HTMLInputElement && cursor !== null) again.setSelectionRange(cursor, cursor);
  };
}
