/** The jobs panel on the left, and one tab per run that is opened from it. */

import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, MainAreaWidget, Notification, WidgetTracker } from "@jupyterlab/apputils";
import { INotebookTracker } from "@jupyterlab/notebook";
import { Widget } from "@lumino/widgets";

import { mountCard } from "../card/card";
import { mountJobs } from "../jobs/list";
import type { Page } from "../page";
import type { Disposer } from "../stream";
import type { RunView } from "../types";
import { openNotebook, showCell } from "./cells";
import { JOBS, OPEN_RUN, openRun } from "./commands";
import { jobsIcon } from "./icons";
import { browserNotices, wakeNotices } from "./notify";
import { IPage } from "./page";

export const jobs: JupyterFrontEndPlugin<void> = {
  id: "slicelift:jobs",
  description: "The list of jobs, and runs in tabs.",
  autoStart: true,
  requires: [IPage],
  optional: [INotebookTracker, ICommandPalette, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    page: Page,
    notebooks: INotebookTracker | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
  ) => {
    addRuns({ app, notebooks, page }, restorer);
    const side = new JobsSide(page, (view) => openRun(app, view));
    app.shell.add(side, "left", { rank: 650 });
    restorer?.add(side, side.id);
    app.commands.addCommand(JOBS, {
      label: page.words.__("Show Jobs"),
      describedBy: { args: { type: "object", properties: {} } },
      execute: () => app.shell.activateById(side.id),
    });
    palette?.addItem({ command: JOBS, category: "Slicelift" });
  },
};

interface Parts {
  app: JupyterFrontEnd;
  notebooks: INotebookTracker | null;
  page: Page;
}

/** The command that opens a run's card in a tab of its own, again after a reload. */
function addRuns(parts: Parts, restorer: ILayoutRestorer | null): void {
  const { app, page } = parts;
  const tracker = new WidgetTracker<MainAreaWidget<RunTab>>({ namespace: "slicelift-runs" });
  app.commands.addCommand(OPEN_RUN, {
    label: page.words.__("Open a Run"),
    isVisible: () => false,
    describedBy: {
      args: {
        type: "object",
        properties: { run_id: { type: "string" }, view: { type: "object" } },
        required: ["run_id"],
      },
    },
    execute: (args) => {
      const runId = String(args.run_id ?? "");
      if (!runId) return;
      const known = tracker.find((widget) => widget.content.runId === runId);
      const widget = known ?? runTab((args.view as unknown as RunView | undefined) ?? runId, parts);
      if (!known) void tracker.add(widget);
      if (!widget.isAttached) app.shell.add(widget, "main");
      app.shell.activateById(widget.id);
    },
  });
  void restorer?.restore(tracker, {
    command: OPEN_RUN,
    args: (widget) => ({ run_id: widget.content.runId }),
    name: (widget) => widget.content.runId,
  });
}

function runTab(run: string | RunView, { app, notebooks, page }: Parts): MainAreaWidget<RunTab> {
  const content = new RunTab(run, page, (file, cell, line) => {
    const panel = notebooks && openNotebook(notebooks, file);
    if (panel) void showCell(app, panel, { cell, line });
    else Notification.info(page.words.__("Open %1 first, then click again.", file), { autoClose: 6000 });
  });
  const widget = new MainAreaWidget({ content });
  widget.id = `slicelift-${content.runId}`;
  widget.toolbar.hide();
  return widget;
}

class RunTab extends Widget {
  readonly runId: string;
  private readonly card: Disposer;

  constructor(run: string | RunView, page: Page, openCell: (file: string, cell: number, line: number) => void) {
    super();
    this.runId = typeof run === "string" ? run : run.run_id;
    this.addClass("sl-tab");
    this.title.label = typeof run === "string" ? run : run.name;
    this.title.caption = page.words.__("Run %1", this.runId);
    this.title.icon = jobsIcon;
    this.title.closable = true;
    const place = document.createElement("div");
    this.node.append(place);
    const named = (view: RunView): void => void (this.title.label = view.name);
    this.card = mountCard(place, run, { ...page, host: { openCell, named } });
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.card.dispose();
    super.dispose();
  }
}

/** Asks for nothing until it is first seen. */
class JobsSide extends Widget {
  private list: Disposer | null = null;

  constructor(
    private readonly page: Page,
    private readonly open: (view: RunView) => void,
  ) {
    super();
    this.id = "slicelift-jobs";
    this.addClass("sl-side");
    this.title.icon = jobsIcon;
    this.title.caption = page.words.__("Jobs");
  }

  override dispose(): void {
    this.list?.dispose();
    super.dispose();
  }

  protected override onActivateRequest(): void {
    this.node.querySelector("input")?.focus();
  }

  protected override onAfterShow(): void {
    wakeNotices();
    this.list ??= mountJobs(this.node, { ...this.page, openRun: this.open, notices: browserNotices });
  }
}

export default jobs;
