/** Says when a job of mine ends: in JupyterLab always, by the browser where it may. Once per attempt, over all tabs. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { Notification as LabNotification } from "@jupyterlab/apputils";

import type { Api } from "../api";
import { type Ending, Endings, endingText } from "../jobs/endings";
import type { Notices } from "../jobs/list";
import type { Page } from "../page";
import type { Context } from "../promote/answers";
import type { Disposer } from "../stream";
import type { RunView } from "../types";
import type { Words } from "../words";
import { openRun } from "./commands";
import { IPage } from "./page";

const SHOWN_MILLISECONDS = 10_000;
// a hidden page has no stream; browsers let its timers run once a minute
const HIDDEN_POLL_MILLISECONDS = 60_000;

let wake: () => void = () => undefined;

/** There may be jobs now: begin to watch, if that was not begun. */
export function wakeNotices(): void {
  wake();
}

export const browserNotices: Notices = {
  state: () => {
    if (!("Notification" in window)) return "none";
    const { permission } = Notification;
    return permission === "granted" ? "on" : permission === "denied" ? "blocked" : "ask";
  },
  ask: async () => {
    if ("Notification" in window) await Notification.requestPermission();
  },
};

export const notify: JupyterFrontEndPlugin<void> = {
  id: "slicelift:notify",
  description: "Tells when a job ends.",
  autoStart: true,
  requires: [IPage],
  activate: (app: JupyterFrontEnd, { api, feed, words }: Page) => {
    const endings = new Endings(
      (ending) => tell(app, ending, words),
      () => !document.hasFocus(),
    );
    let watching: Disposer | null = null;
    wake = () => {
      watching ??= feed.watchAll({
        run: (view) => endings.seen(view),
        reset: () => void catchUp(endings, api),
      });
    };
    document.addEventListener("visibilitychange", () => pollWhileHidden(endings, api));
    // a launcher that runs may have jobs of this user; one that does not is not asked for
    void app.restored.then(async () => {
      const context = await api.get<Context>("context").catch(() => null);
      if (context?.launcher === "up") wake();
    });
  },
};

/** What ended while the page had no stream. */
async function catchUp(endings: Endings, api: Api): Promise<void> {
  const answer = await api.get<{ jobs: RunView[] }>("api/jobs?limit=50").catch(() => null);
  answer?.jobs.forEach((view) => endings.seen(view));
}

let polling: ReturnType<typeof setInterval> | undefined;

function pollWhileHidden(endings: Endings, api: Api): void {
  clearInterval(polling);
  if (!document.hidden || browserNotices.state() !== "on") return;
  polling = setInterval(() => endings.anyActive() && void catchUp(endings, api), HIDDEN_POLL_MILLISECONDS);
}

function tell(app: JupyterFrontEnd, ending: Ending, words: Words): void {
  const { view } = ending;
  const text = endingText(view, words);
  const show = (): void => {
    window.focus();
    openRun(app, view);
  };
  const type = { FINISHED: "success", FAILED: "error" }[view.status as string] ?? "info";
  LabNotification.emit(text, type as LabNotification.TypeOptions, {
    autoClose: SHOWN_MILLISECONDS,
    actions: [{ label: words.__("Show"), callback: show }],
  });
  if (browserNotices.state() !== "on" || document.hasFocus()) return;
  try {
    new Notification("Slicelift", { body: text, tag: ending.key }).onclick = show;
  } catch {
    // some browsers allow them to service workers only; JupyterLab has shown it
  }
}

export default notify;
