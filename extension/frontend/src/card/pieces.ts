/** The small parts of a card: the line about the connection, the last line, the table of all metrics. */

import { el, memo } from "../elements";
import { agoText, clockText } from "../figures";
import { remarks } from "../sentences";
import type { RunView } from "../types";
import type { Words } from "../words";
import type { Standing } from "./follower";
import { isOfRank, keyLabel, valueText } from "./keys";
import type { Section } from "./outputs";

export interface Notice {
  node: HTMLElement;
  /** `asOf`: when what is shown was true, Unix seconds; null when nothing is shown. */
  tell(standing: Standing, message: string, asOf: number | null): void;
}

/** Says that the connection is lost, what is shown meanwhile, and what goes on all the same. */
export function makeNotice(words: Words, again: () => void): Notice {
  const text = el("span");
  const button = el("button", { type: "button", onclick: again }, words.__("Try now"));
  const node = el("div", { class: "sl-notice", role: "status", hidden: true }, text, button);
  return {
    node,
    tell(standing, message, asOf) {
      const lost = standing === "reconnecting" || standing === "away";
      node.hidden = !lost && standing !== "gone" && standing !== "still";
      button.hidden = !lost;
      if (node.hidden) text.textContent = "";
      else text.textContent = [reason(standing, message, words), shown(standing, asOf, words)].filter(Boolean).join(" ");
    },
  };
}

function reason(standing: Standing, message: string, words: Words): string {
  if (standing === "still") {
    return words.__("Live updates need JupyterLab; here you see the run as it was when this cell ran.");
  }
  if (standing === "gone") return words.__("This run is not yours, or it is no longer known here.");
  return message || words.__("The connection is lost; trying again.");
}

function shown(standing: Standing, asOf: number | null, words: Words): string {
  if (asOf === null || standing === "still") return "";
  if (standing === "gone") return words.__("Shown is what was saved with the notebook.");
  return words.__("The run itself goes on. Shown is how it stood at %1.", clockText(asOf));
}

/** When the last point came, what was thinned, and whether the tracker is away. */
export function makeFoot(words: Words): { node: HTMLElement; update(view: RunView): void } {
  const last = el("span", { class: "sl-dim" });
  const remarks = el("span", { class: "sl-remark" });
  const node = el("div", { class: "sl-foot", hidden: true }, remarks, last);
  return {
    node,
    update(view) {
      const seen = Math.max(0, ...view.ranks.map((row) => row.last_seen ?? 0));
      const live = view.status === "RUNNING" && seen > 0;
      last.textContent = live ? words.__("last point %1", agoText(seen, words)) : "";
      remarks.textContent = remarksOn(view, words).join(" · ");
      node.hidden = !last.textContent && !remarks.textContent;
    },
  };
}

function remarksOn(view: RunView, words: Words): string[] {
  const found = remarks(view, words);
  if (view.tracker === "down") found.push(words.__("MLflow is away; nothing is lost, it gets everything later"));
  return found;
}

/** Every metric with its newest value, on demand. */
export function makeMetrics(words: Words): Section & { tick(): void } {
  const summary = el("summary");
  const rows = el("tbody");
  const titles = [words.__("metric"), words.__("newest value"), words.__("step")];
  const head = el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title))));
  const node = el("details", { class: "sl-more", hidden: true }, summary, el("table", {}, head, rows));
  let view: RunView;
  const fill = () => {
    if (!node.open) return;
    const known = Object.entries(view.latest).sort(([one], [other]) => (one < other ? -1 : 1));
    rows.replaceChildren(...known.map(([key, [step, value]]) => metricRow(key, [valueText(plainKey(key), value, words), String(step)], words)));
  };
  const redraw = memo(fill);
  node.addEventListener("toggle", fill);
  return {
    node,
    tick: () => view && redraw(JSON.stringify(view.latest)),
    update(newest) {
      view = newest;
      const count = Object.keys(view.latest).length;
      summary.textContent = words._n("%1 metric", "all %1 metrics", count);
      node.hidden = count === 0;
      redraw(JSON.stringify(view.latest));
    },
  };
}

function metricRow(key: string, values: string[], words: Words): HTMLElement {
  const label = isOfRank(key) ? key : keyLabel(key, words);
  return el("tr", {}, el("td", { title: key }, label), ...values.map((text) => el("td", { class: "sl-number" }, text)));
}

function plainKey(key: string): string {
  return key.replace(/^rank\/\d+\//, "");
}
