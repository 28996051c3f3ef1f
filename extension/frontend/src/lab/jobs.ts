/** The jobs panel on the left, and one tab per run that is opened from it. */

import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, MainAreaWidget, Notification, WidgetTracker } from "@jupyterlab/apputils";
import { INotebookTracker } from "@jupyterlab/notebook";
import { ITranslator, nullTranslator } from "@jupyterlab/translation";
import { Widget } from "@lumino/widgets";

import { mountCard } from "../card/card";
import { mountJobs } from "../jobs/list";
import type { Disposer } from "../stream";
import type { RunView } from "../types";
import type { Words } from "../words";
import { labApi, labFeed } from "./api";
import { openNotebook, showCell } from "./cells";
import { jobsIcon } from "./icons";
import { browserNotices, wakeNotices } from "./notify";

export const OPEN_RUN = "slicelift:open-run";
export const JOBS = "slicelift:jobs";

export const jobs: JupyterFrontEndPlugin<void> = {
  id: "slicelift:jobs",
  description: "The list of jobs, and runs in tabs.",
  autoStart: true,
  optional: [INotebookTracker, ITranslator, ICommandPalette, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    notebooks: INotebookTracker | null,
    translator: ITranslator | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
  ) => {
    const words = (translator ?? nullTranslator).load("slicelift");
    addRuns({ app, notebooks, words, restorer });
    const side = new JobsSide(words, (runId) => void app.commands.execute(OPEN_RUN, { run_id: runId }));
    app.shell.add(side, "left", { rank: 650 });
    restorer?.add(side, side.id);
    app.commands.addCommand(JOBS, {
      label: words.__("Show Jobs"),
      describedBy: { args: { type: "object", properties: {} } },
      execute: () => app.shell.activateById(side.id),
    });
    palette?.addItem({ command: JOBS, category: "Slicelift" });
  },
};

/** The command that opens a run's card in a tab of its own, again after a reload. */
function addRuns(parts: {
  app: JupyterFrontEnd;
  notebooks: INotebookTracker | null;
  words: Words;
  restorer: ILayoutRestorer | null;
}): void {
  const { app, words } = parts;
  const tracker = new WidgetTracker<MainAreaWidget<RunTab>>({ namespace: "slicelift-runs" });
  app.commands.addCommand(OPEN_RUN, {
    label: words.__("Open a Run"),
    isVisible: () => false,
    describedBy: {
      args: { type: "object", properties: { run_id: { type: "string" } }, required: ["run_id"] },
    },
    execute: (args) => {
      const runId = String(args.run_id ?? "");
      if (!runId) return;
      const known = tracker.find((widget) => widget.content.runId === runId);
      const widget = known ?? runTab(runId, parts);
      if (!known) void tracker.add(widget);
      if (!widget.isAttached) app.shell.add(widget, "main");
      app.shell.activateById(widget.id);
    },
  });
  void parts.restorer?.restore(tracker, {
    command: OPEN_RUN,
    args: (widget) => ({ run_id: widget.content.runId }),
    name: (widget) => widget.content.runId,
  });
}

function runTab(
  runId: string,
  parts: { app: JupyterFrontEnd; notebooks: INotebookTracker | null; words: Words },
): MainAreaWidget<RunTab> {
  const content = new RunTab(runId, parts.words, (file, cell, line) => {
    const panel = parts.notebooks && openNotebook(parts.notebooks, file);
    if (panel) void showCell(parts.app, panel, { cell, line });
    else Notification.info(parts.words.__("Open %1 first, then click again.", file), { autoClose: 6000 });
  });
  const widget = new MainAreaWidget({ content });
  widget.id = `slicelift-${runId}`;
  widget.toolbar.hide();
  return widget;
}

class RunTab extends Widget {
  private readonly card: Disposer;

  constructor(
    readonly runId: string,
    words: Words,
    openCell: (file: string, cell: number, line: number) => void,
  ) {
    super();
    this.addClass("sl-tab");
    this.title.label = runId;
    this.title.caption = words.__("Run %1", runId);
    this.title.icon = jobsIcon;
    this.title.closable = true;
    const place = document.createElement("div");
    this.node.append(place);
    this.card = mountCard(place, runId, { api: labApi, feed: labFeed, words, host: { openCell } });
    void this.named();
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.card.dispose();
    super.dispose();
  }

  /** The tab is called by the run's name once that is known. */
  private async named(): Promise<void> {
    const view = await labApi.get<RunView>(`api/jobs/${this.runId}`).catch(() => null);
    if (view && !this.isDisposed) this.title.label = view.name;
  }
}

/** Asks for nothing until it is first seen. */
class JobsSide extends Widget {
  private list: Disposer | null = null;

  constructor(
    private readonly words: Words,
    private readonly openRun: (runId: string) => void,
  ) {
    super();
    this.id = "slicelift-jobs";
    this.addClass("sl-side");
    this.title.icon = jobsIcon;
    this.title.caption = words.__("Jobs");
  }

  override dispose(): void {
    this.list?.dispose();
    super.dispose();
  }

  protected override onAfterShow(): void {
    wakeNotices();
    this.list ??= mountJobs(this.node, {
      api: labApi,
      feed: labFeed,
      words: this.words,
      openRun: this.openRun,
      notices: browserNotices,
    });
  }
}

export default jobs;
