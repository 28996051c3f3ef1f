/** The Promote command and its panel on the right: one sheet per notebook, the current one is shown. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { Dialog, ICommandPalette, showDialog } from "@jupyterlab/apputils";
import { INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import { IStateDB } from "@jupyterlab/statedb";
import { Widget } from "@lumino/widgets";

import { el } from "../elements";
import type { Page } from "../page";
import { type PromoteHandle, mountPromote } from "../promote/panel";
import { openNotebook, showCell } from "./cells";
import { JOBS, openRun, PROMOTE } from "./commands";
import { promoteIcon } from "./icons";
import { wakeNotices } from "./notify";
import { IPage } from "./page";

const SAVE_UNASKED = "slicelift:save-unasked";

export const promote: JupyterFrontEndPlugin<void> = {
  id: "slicelift:plugin", // the name of its schema, which puts the button into the toolbar
  description: "The Promote button and panel of notebooks.",
  autoStart: true,
  requires: [INotebookTracker, IPage],
  optional: [ICommandPalette, IStateDB],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    page: Page,
    palette: ICommandPalette | null,
    memory: IStateDB | null,
  ) => {
    const { words } = page;
    let side: PromoteSide | null = null;
    const shown = (): PromoteSide => {
      if (!side || side.isDisposed) side = new PromoteSide({ app, tracker, page, memory });
      if (!side.isAttached) app.shell.add(side, "right", { rank: 500 });
      app.shell.activateById(side.id);
      return side;
    };
    app.commands.addCommand(PROMOTE, {
      label: words.__("Promote"),
      caption: words.__("Run this notebook as a job"),
      isEnabled: () => tracker.currentWidget !== null,
      describedBy: { args: { type: "object", properties: {} } },
      execute: () => {
        const panel = tracker.currentWidget;
        if (panel) shown().promote(panel);
      },
    });
    tracker.widgetAdded.connect(() => app.commands.notifyCommandChanged(PROMOTE));
    tracker.currentChanged.connect(() => app.commands.notifyCommandChanged(PROMOTE));
    palette?.addItem({ command: PROMOTE, category: words.__("Notebook Operations") });
    app.contextMenu.addItem({ command: PROMOTE, selector: ".jp-Notebook", rank: 20 });
  },
};

interface Parts {
  app: JupyterFrontEnd;
  tracker: INotebookTracker;
  page: Page;
  memory: IStateDB | null;
}

/** Of one notebook. */
interface Sheet {
  node: HTMLElement;
  handle: PromoteHandle;
  path: string;
}

class PromoteSide extends Widget {
  private readonly sheets = new Map<NotebookPanel, Sheet>();
  private readonly empty = el("div", { class: "sl-empty" });

  constructor(private readonly parts: Parts) {
    super();
    this.id = "slicelift-promote";
    this.addClass("sl-side");
    this.title.icon = promoteIcon;
    this.title.caption = parts.page.words.__("Promote");
    this.node.append(this.empty);
    parts.tracker.currentChanged.connect(this.follow, this);
  }

  /** Opens the sheet of a notebook; one that is there already is shown as it stands. */
  promote(panel: NotebookPanel): void {
    const sheet = this.sheets.get(panel);
    if (!sheet || sheet.path !== panel.context.path) this.add(panel);
    this.follow();
    this.focus();
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.parts.tracker.currentChanged.disconnect(this.follow, this);
    [...this.sheets.keys()].forEach((panel) => this.remove(panel));
    super.dispose();
  }

  protected override onActivateRequest(): void {
    if (!this.node.contains(document.activeElement)) this.focus();
  }

  /** Into the sheet that is shown, or to the offer of one; not away from a dialog. */
  private focus(): void {
    if (document.querySelector(".jp-Dialog")) return;
    const sheet = [...this.sheets.values()].find(({ node }) => !node.hidden);
    if (sheet && this.empty.hidden) sheet.handle.focus();
    else this.empty.querySelector("button")?.focus();
  }

  private add(panel: NotebookPanel): void {
    this.remove(panel);
    const { app, page } = this.parts;
    const node = el("div");
    this.node.append(node);
    const openCell = (cell: number, line: number): void => void showCell(app, panel, { cell, line });
    const handle = mountPromote(node, {
      ...page,
      path: panel.context.path,
      host: { openCell: (file, cell, line) => this.openPlace(panel, file, { cell, line }) },
      save: () => this.save(panel),
      openCell,
      submitted: () => wakeNotices(),
      openJobs: (view) => {
        void app.commands.execute(JOBS);
        openRun(app, view);
      },
    });
    this.sheets.set(panel, { node, handle, path: panel.context.path });
    panel.context.fileChanged.connect(handle.refresh, handle);
    panel.context.model.stateChanged.connect((_, change) => {
      if (change.name === "dirty" && change.newValue) handle.edited();
    }, handle);
    panel.disposed.connect(() => this.remove(panel), handle);
  }

  private remove(panel: NotebookPanel): void {
    const sheet = this.sheets.get(panel);
    if (!sheet) return;
    this.sheets.delete(panel);
    if (!panel.isDisposed) panel.context.fileChanged.disconnect(sheet.handle.refresh, sheet.handle);
    sheet.handle.dispose();
    sheet.node.remove();
    this.follow();
  }

  private openPlace(panel: NotebookPanel, file: string, place: { cell: number; line: number }): void {
    const named = file ? openNotebook(this.parts.tracker, file) : null;
    void showCell(this.parts.app, named ?? panel, place);
  }

  /** The sheet of the current notebook, or an offer to make one; the last sheet stays where no notebook is current. */
  private follow(): void {
    const current = this.parts.tracker.currentWidget;
    this.sheets.forEach((sheet, panel) => (sheet.node.hidden = panel !== current));
    this.empty.hidden = current !== null && this.sheets.has(current);
    if (!this.empty.hidden) this.offer(current);
  }

  private offer(panel: NotebookPanel | null): void {
    const { words } = this.parts.page;
    if (!panel) {
      this.empty.replaceChildren(el("p", { class: "sl-dim" }, words.__("Open a notebook to promote it.")));
      return;
    }
    const name = panel.context.path.split("/").pop() ?? "";
    const go = (): void => this.promote(panel);
    this.empty.replaceChildren(
      el("button", { type: "button", class: "sl-main", onclick: go }, words.__("Promote %1", name)),
    );
  }

  /** True when the file holds what the page shows. Asks before it saves, unless told not to. */
  private async save(panel: NotebookPanel): Promise<boolean> {
    if (panel.isDisposed || !panel.context.model.dirty) return !panel.isDisposed;
    if (!(await this.maySave(panel))) return false;
    try {
      await panel.context.save();
    } catch {
      return false; // JupyterLab has shown why
    }
    return !panel.context.model.dirty;
  }

  private async maySave(panel: NotebookPanel): Promise<boolean> {
    const { memory, page } = this.parts;
    const { words } = page;
    if ((await memory?.fetch(SAVE_UNASKED)) === true) return true;
    const answer = await showDialog({
      title: words.__("Save %1?", panel.title.label),
      body: words.__("It has unsaved changes. What is promoted is the file."),
      checkbox: memory ? { label: words.__("Do not ask again"), checked: false } : null,
      buttons: [
        Dialog.cancelButton({ label: words.__("Cancel") }),
        Dialog.okButton({ label: words.__("Save and go on") }),
      ],
    });
    if (answer.button.accept && answer.isChecked) await memory?.save(SAVE_UNASKED, true);
    return answer.button.accept;
  }
}

export default promote;
