/** The run card as the output under a cell. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { Widget } from "@lumino/widgets";

import { type Host, mountCard } from "../card/card";
import type { Page } from "../page";
import type { Disposer } from "../stream";
import { type Bundle, isTerminal, MIME } from "../types";
import { openNotebook, showCell } from "./cells";
import { wakeNotices } from "./notify";
import { IPage } from "./page";

const RANK = 10; // text/html has 50: a higher rank would never be shown

export const renderer: JupyterFrontEndPlugin<void> = {
  id: "slicelift:renderer",
  description: "Shows a run under the cell that promoted it.",
  autoStart: true,
  requires: [IRenderMimeRegistry, IPage],
  optional: [INotebookTracker],
  activate: (app: JupyterFrontEnd, registry: IRenderMimeRegistry, page: Page, notebooks: INotebookTracker | null) => {
    registry.addFactory({ safe: true, mimeTypes: [MIME], createRenderer: () => new RunOutput({ app, notebooks, page }) }, RANK);
  },
};

interface Surroundings {
  app: JupyterFrontEnd;
  notebooks: INotebookTracker | null;
  page: Page;
}

/** One output. Drawing the same run again keeps the card that is there, which is live. */
class RunOutput extends Widget implements IRenderMime.IRenderer {
  private card: Disposer | null = null;
  private runId = "";
  private model: IRenderMime.IMimeModel | null = null;

  constructor(private readonly parts: Surroundings) {
    super();
    this.addClass("sl-output");
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const bundle = (model.data[MIME] ?? {}) as unknown as Partial<Bundle>;
    this.model = model;
    if (this.card && bundle.run_id === this.runId) return;
    this.card?.dispose();
    this.card = null;
    this.runId = bundle.run_id ?? "";
    if (!this.runId) return void (this.node.textContent = String(model.data["text/plain"] ?? ""));
    const saved = bundle.view && bundle.series ? (bundle as Bundle) : null; // somebody may have edited the file
    this.card = mountCard(this.node, saved ?? this.runId, { ...this.parts.page, host: this.host() });
    if (!saved || !isTerminal(saved.view.status)) wakeNotices();
  }

  override dispose(): void {
    this.card?.dispose();
    this.card = null;
    super.dispose();
  }

  private host(): Host {
    return { openCell: (file, cell, line) => this.jump(file, { cell, line }), saved: (bundle) => this.save(bundle) };
  }

  /** The notebook this output lies in, where it lies in one. */
  private panel(): NotebookPanel | null {
    return this.parts.notebooks?.find((panel) => panel.node.contains(this.node)) ?? null;
  }

  private jump(file: string, place: { cell: number; line: number }): void {
    const { app, notebooks } = this.parts;
    const panel = (notebooks && openNotebook(notebooks, file)) ?? this.panel();
    if (panel) void showCell(app, panel, place);
  }

  /** So that the file, once saved, shows the end on a static page too. */
  private save(bundle: object): void {
    const panel = this.panel();
    if (!panel || panel.context.model.readOnly || panel.context.contentsModel?.writable === false) return;
    const { data } = bundle as { data: IRenderMime.IMimeModel["data"] };
    this.model?.setData({ data });
  }
}
