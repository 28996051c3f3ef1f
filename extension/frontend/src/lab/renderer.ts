/** The run card and the list of jobs as outputs under a cell. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { Widget } from "@lumino/widgets";

import { type Host, mountCard } from "../card/card";
import type { Page } from "../page";
import type { Disposer } from "../stream";
import { mountJobsWithCard } from "../jobs/withcard";
import { type Bundle, isTerminal, JOBS_MIME, MIME } from "../types";
import { openNotebook, showCell } from "./cells";
import { wakeNotices } from "./notify";
import { IPage } from "./page";

const RANK = -20; // first of an output's types: text/html has 50, a widget -10, and a widget dies with its kernel

export const renderer: JupyterFrontEndPlugin<void> = {
  id: "slicelift:renderer",
  description: "Shows a run under the cell that promoted it, and the list of jobs.",
  autoStart: true,
  requires: [IRenderMimeRegistry, IPage],
  optional: [INotebookTracker],
  activate: (app: JupyterFrontEnd, registry: IRenderMimeRegistry, page: Page, notebooks: INotebookTracker | null) => {
    const parts = { app, notebooks, page };
    registry.addFactory({ safe: true, mimeTypes: [MIME], createRenderer: () => new RunOutput(parts) }, RANK);
    registry.addFactory({ safe: true, mimeTypes: [JOBS_MIME], createRenderer: () => new JobsOutput(parts) }, RANK);
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
    return { openCell: jumping(this, this.parts), saved: (bundle) => this.save(bundle) };
  }

  /** So that the file, once saved, shows the end on a static page too. */
  private save(bundle: object): void {
    const panel = panelOf(this, this.parts);
    if (!panel || panel.context.model.readOnly || panel.context.contentsModel?.writable === false) return;
    const { data } = bundle as { data: IRenderMime.IMimeModel["data"] };
    this.model?.setData({ data });
  }
}

/** One output; drawing it again keeps the list that is there. */
class JobsOutput extends Widget implements IRenderMime.IRenderer {
  private list: Disposer | null = null;

  constructor(private readonly parts: Surroundings) {
    super();
    this.addClass("sl-output");
  }

  async renderModel(): Promise<void> {
    this.list ??= mountJobsWithCard(this.node, { ...this.parts.page, host: { openCell: jumping(this, this.parts) } });
    wakeNotices();
  }

  override dispose(): void {
    this.list?.dispose();
    this.list = null;
    super.dispose();
  }
}

/** The notebook an output lies in, where it lies in one. */
function panelOf(output: Widget, { notebooks }: Surroundings): NotebookPanel | null {
  return notebooks?.find((panel) => panel.node.contains(output.node)) ?? null;
}

/** Shows a place of a run in its notebook, or in the one that the output lies in. */
function jumping(output: Widget, parts: Surroundings): NonNullable<Host["openCell"]> {
  return (file, cell, line) => {
    const { app, notebooks } = parts;
    const panel = (notebooks && openNotebook(notebooks, file)) ?? panelOf(output, parts);
    if (panel) void showCell(app, panel, { cell, line });
  };
}
