/** One notebook's way to a job: what is known of it, and what is asked next. No DOM. */

import type { Api } from "../api";
import { type Fault, faultFrom, isPassing, Refusal } from "../faults";
import type { RunView } from "../types";
import type { Words } from "../words";
import type { CheckAnswer, Context, FindingRow, PlanAnswer, Step } from "./answers";
import { type Choice, emptyChoice, faultOf, presetOf, requestOf } from "./choice";
import { mintId } from "./id";
import { submitPromotion } from "./submit";

const REPLAN_MILLISECONDS = 500;
const RECHECK_MILLISECONDS = 300;
const AGAIN_MILLISECONDS = 1000;

export interface Surroundings {
  api: Api;
  words: Words;
  path: string;
  /** Saves the document if it must be; false when the user would not. */
  save(): Promise<boolean>;
  submitted(view: RunView): void;
}

export interface State {
  context: Context | null;
  contextFault: Fault | null;
  check: CheckAnswer | null;
  checkFault: Fault | null;
  checking: boolean;
  /** The document in the page is not what was checked. */
  edited: boolean;
  plan: PlanAnswer | null;
  planFault: Fault | null;
  planning: boolean;
  steps: Step[];
  submitting: boolean;
  lost: boolean;
  submitFault: Fault | null;
  run: RunView | null;
}

// what was typed outlives a closed panel, by path
const remembered = new Map<string, Choice>();

export class Session {
  readonly state: State = freshState();
  readonly choice: Choice;
  private readonly ended = new AbortController();
  private checks = 0;
  private plans = 0;
  private saves = 0;
  private readonly timers = new Map<string, ReturnType<typeof setTimeout>>();
  private intent = { key: "", id: "" };

  constructor(
    private readonly around: Surroundings,
    private readonly changed: () => void,
  ) {
    this.choice = remembered.get(around.path) ?? emptyChoice();
    remembered.set(around.path, this.choice);
  }

  /** Save, ask what there is, check, plan: all that needs no decision. */
  async open(): Promise<void> {
    void this.askContext();
    await this.checkAgain();
  }

  async checkAgain(): Promise<void> {
    this.state.submitFault = null;
    const saved = await this.around.save();
    this.state.edited = !saved;
    await this.check();
  }

  /** The file was saved by somebody: check it in a moment, unless a submit is under way. */
  saved(): void {
    this.saves++;
    this.state.edited = false;
    const busy = this.state.run !== null || this.state.submitting;
    if (!busy) this.later("check", () => this.check(), RECHECK_MILLISECONDS);
  }

  edited(): void {
    if (this.state.edited) return;
    this.state.edited = true;
    this.changed();
  }

  /** Something was typed or chosen. */
  chosen(): void {
    this.state.submitFault = null;
    this.plans++;
    this.state.planning = this.state.check?.ok === true;
    this.later("plan", () => this.plan(), REPLAN_MILLISECONDS);
    this.changed();
  }

  /** Why Submit cannot be pressed, in words; "" when it can. */
  hindrance(): string {
    const { state, words } = { state: this.state, words: this.around.words };
    if (state.checkFault) return words.__("The notebook could not be checked.");
    if (!state.check) return words.__("The notebook is being checked.");
    const errors = this.findings().filter((row) => row.severity === "error").length;
    if (errors) return words._n("%1 error must be mended first.", "%1 errors must be mended first.", errors);
    if (state.planFault) return words.__("The plan was refused: see below.");
    return "";
  }

  /** The findings of the last check, or of a plan that saw newer ones. */
  findings(): FindingRow[] {
    return findingsOf(this.state.planFault) ?? this.state.check?.findings ?? [];
  }

  async submit(): Promise<void> {
    if (this.state.submitting || this.hindrance()) return;
    Object.assign(this.state, { submitting: true, lost: false, submitFault: null, steps: [] });
    this.changed();
    try {
      if (!(await this.around.save())) throw new Refusal(this.unsaved());
      const view = await this.send();
      this.intent = { key: "", id: "" };
      this.state.run = view;
      this.around.submitted(view);
    } catch (error) {
      this.refused(error);
    } finally {
      this.state.submitting = false;
      this.changed();
    }
  }

  /** Back to the form, for another job. */
  async again(): Promise<void> {
    Object.assign(this.state, { run: null, steps: [], plan: null });
    this.changed();
    await this.checkAgain();
  }

  dispose(): void {
    this.ended.abort();
    this.timers.forEach((timer) => clearTimeout(timer));
  }

  private send(): Promise<RunView> {
    const promotion = { path: this.around.path, request: this.request(), promotion_id: this.intentId() };
    const told = {
      step: (step: Step) => {
        this.state.lost = false;
        this.state.steps.push(step);
        this.changed();
      },
      lost: () => {
        this.state.lost = true;
        this.changed();
      },
    };
    const { api, words } = this.around;
    return submitPromotion(promotion, { api, words, told, signal: this.ended.signal });
  }

  private unsaved(): Fault {
    const { words } = this.around;
    const message = words.__("The notebook has unsaved changes; nothing was submitted.");
    return { code: "notebook-unsaved", message, hint: words.__("Save it, then press Submit again.") };
  }

  private refused(error: unknown): void {
    const fault = faultFrom(error, this.around.words);
    if (fault.code === "promotion-differs") this.intent = { key: "", id: "" };
    this.state.submitFault = fault;
    const findings = findingsOf(fault);
    if (findings && this.state.check) this.state.check = { ...this.state.check, findings, ok: false };
  }

  /** The same intent has the same id: the same form, the same saved notebook. */
  private intentId(): string {
    const key = JSON.stringify([this.request(), this.saves]);
    if (this.intent.key !== key) this.intent = { key, id: mintId() };
    return this.intent.id;
  }

  private request(): ReturnType<typeof requestOf> {
    const { context, plan } = this.state;
    const preset = presetOf(this.choice, context?.presets ?? []);
    return requestOf(this.choice, preset, plan?.capacity ?? context?.capacity ?? null);
  }

  private async check(): Promise<void> {
    const turn = ++this.checks;
    Object.assign(this.state, { checking: true, checkFault: null });
    this.changed();
    const answer = await this.ask<CheckAnswer>("check", { path: this.around.path });
    if (turn !== this.checks || this.ended.signal.aborted) return;
    this.state.checking = false;
    this.state.check = answer.value ?? null;
    this.state.checkFault = answer.fault ?? null;
    this.forgetStrangers();
    if (this.state.check?.ok) return this.plan();
    Object.assign(this.state, { plan: null, planFault: null, planning: false });
    this.changed();
  }

  /** Overrides of parameters that the notebook no longer has would only be refused. */
  private forgetStrangers(): void {
    const known = new Set(this.state.check?.parameters.map((parameter) => parameter.name));
    for (const name of Object.keys(this.choice.parameters)) {
      if (this.state.check && !known.has(name)) delete this.choice.parameters[name];
    }
  }

  private async plan(): Promise<void> {
    if (!this.state.check?.ok || this.ended.signal.aborted) return;
    const turn = ++this.plans;
    const preset = presetOf(this.choice, this.state.context?.presets ?? []);
    this.state.planFault = faultOf(this.choice, preset, this.around.words);
    this.state.planning = this.state.planFault === null;
    this.changed();
    if (this.state.planFault) return;
    const answer = await this.ask<PlanAnswer>("plan", { path: this.around.path, request: this.request() });
    if (turn !== this.plans || this.ended.signal.aborted) return;
    this.state.planning = false;
    this.state.plan = answer.value ?? this.state.plan;
    this.state.planFault = answer.fault ?? null;
    this.changed();
  }

  private async ask<T>(path: string, body: unknown): Promise<{ value?: T; fault?: Fault }> {
    for (let tries = 0; ; tries++) {
      try {
        return { value: await this.around.api.post<T>(path, body) };
      } catch (error) {
        if (!isPassing(error) || tries >= 3 || this.ended.signal.aborted) {
          return { fault: faultFrom(error, this.around.words) };
        }
        await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS));
      }
    }
  }

  /** What can be chosen; asked again until the launcher is up, since only it knows what is free. */
  private async askContext(): Promise<void> {
    const before = this.state.context?.launcher;
    try {
      this.state.context = await this.around.api.get<Context>("context");
      this.state.contextFault = null;
    } catch (error) {
      this.state.contextFault = faultFrom(error, this.around.words);
    }
    if (this.ended.signal.aborted) return;
    const launcher = this.state.context?.launcher;
    if (launcher !== "up") {
      const pause = AGAIN_MILLISECONDS * (launcher === "starting" ? 1 : 5);
      this.later("context", () => this.askContext(), pause);
    } else if (before && before !== "up") this.later("plan", () => this.plan(), 0);
    this.changed();
  }

  /** Once, after the last call of that name. */
  private later(name: string, act: () => Promise<void>, milliseconds: number): void {
    clearTimeout(this.timers.get(name));
    this.timers.set(
      name,
      setTimeout(() => void act(), milliseconds),
    );
  }
}

/** A refusal of the preflight carries what it found. */
function findingsOf(fault: Fault | null): FindingRow[] | undefined {
  return (fault?.detail as { findings?: FindingRow[] } | null | undefined)?.findings;
}

function freshState(): State {
  return {
    context: null,
    contextFault: null,
    check: null,
    checkFault: null,
    checking: false,
    edited: false,
    plan: null,
    planFault: null,
    planning: false,
    steps: [],
    submitting: false,
    lost: false,
    submitFault: null,
    run: null,
  };
}
