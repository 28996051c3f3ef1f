/** What the attempts left under ./outputs, and the attempts themselves: read when they are opened. */

import type { Api } from "../api";
import { el } from "../elements";
import { faultText } from "../faults";
import { clockText, durationText, sizeText } from "../figures";
import { failureSentence, statusWord } from "../sentences";
import { type Attempt, isTerminal, type Output, type RunView } from "../types";
import type { Words } from "../words";

const DELIVERING = "delivering"; // over, and what it left is still on its way

export interface Section {
  node: HTMLElement;
  update(view: RunView): void;
}

interface Parts {
  api: Api;
  words: Words;
}

export function makeOutputs({ api, words }: Parts): Section {
  return section({
    title: () => words.__("Outputs"),
    hidden: () => false,
    stamp: (view) => `${view.attempt}/${view.status}/${view.phase}`,
    read: async (view) => {
      const { outputs } = await api.get<{ outputs: Output[] }>(`api/jobs/${view.run_id}/outputs`);
      if (!outputs.length) return [el("p", { class: "sl-dim" }, nothing(view, words))];
      return [el("ul", { class: "sl-files" }, ...outputs.map((output) => file(output, { view, api, words })))];
    },
  });
}

export function makeAttempts({ api, words }: Parts): Section {
  return section({
    title: (view) => words._n("%1 attempt", "%1 attempts", view.attempt),
    hidden: (view) => view.attempt < 2,
    stamp: (view) => `${view.attempt}/${view.status}`,
    read: async (view) => {
      const { attempts } = await api.get<{ attempts: Attempt[] }>(`api/jobs/${view.run_id}/attempts`);
      const titles = [words.__("attempt"), words.__("status"), words.__("started"), words.__("took"), words.__("why it ended")];
      const head = el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title))));
      return [el("table", {}, head, el("tbody", {}, ...attempts.map((attempt) => attemptRow(attempt, view, words))))];
    },
  });
}

interface Plan {
  title(view: RunView): string;
  hidden(view: RunView): boolean;
  /** When this differs from last time, an open section is read again. */
  stamp(view: RunView): string;
  read(view: RunView): Promise<Node[]>;
}

function section(plan: Plan): Section {
  const summary = el("summary");
  const body = el("div", { class: "sl-section" });
  const node = el("details", { class: "sl-more sl-asks" }, summary, body);
  let view: RunView;
  let known = "";
  const fill = async () => {
    const stamp = plan.stamp(view);
    if (!node.open || stamp === known) return;
    known = stamp;
    try {
      body.replaceChildren(...(await plan.read(view)));
    } catch (error) {
      known = "";
      body.replaceChildren(el("p", { class: "sl-dim" }, faultText(error)));
    }
  };
  node.addEventListener("toggle", () => void fill());
  return {
    node,
    update(newest) {
      view = newest;
      summary.textContent = plan.title(view);
      node.hidden = plan.hidden(view);
      void fill();
    },
  };
}

function nothing(view: RunView, words: Words): string {
  if (isTerminal(view.status) && view.phase !== DELIVERING) {
    return words.__("None. What a notebook writes below outputs/ is kept and listed here.");
  }
  return words.__("None yet. What the notebook writes below outputs/ is kept and listed here.");
}

function file(output: Output, { view, api, words }: Parts & { view: RunView }): HTMLElement {
  const path = output.path.split("/").map(encodeURIComponent).join("/");
  const href = api.url(`api/jobs/${view.run_id}/outputs/${output.attempt}/${path}`);
  const name = output.path.split("/").at(-1) ?? output.path;
  const download = el("a", { href, download: name, "aria-label": words.__("Download %1", output.path) }, words.__("Download"));
  const open = el("a", { href, target: "_blank", rel: "noopener" }, output.path);
  const facts = [sizeText(output.size_bytes), ...(view.attempt > 1 ? [words.__("attempt %1", output.attempt)] : [])];
  return el("li", {}, open, el("span", { class: "sl-dim" }, facts.join(" · ")), download);
}

function attemptRow(attempt: Attempt, view: RunView, words: Words): HTMLElement {
  const { started, ended, failure } = attempt;
  const took = started === null || ended === null ? "" : durationText(ended - started, words);
  // what no rank raised ended the attempt, not the job
  const said = words.say(failure?.message || attempt.message || attempt.reason);
  const why = failure && failure.rank !== null ? failureSentence(failure, view.spec.notebook, words) : said;
  const state = statusWord(attempt.status, words, attempt.reason);
  const cells = [String(attempt.attempt), state, started === null ? "" : clockText(started), took, why];
  return el("tr", {}, ...cells.map((text) => el("td", {}, text)));
}
