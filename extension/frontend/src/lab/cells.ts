/** From a place in a run or a finding to the cell and line in an open notebook. */

import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";

/** Shows cell `cell` (all cells, from 0) of an open notebook with the cursor in its line `line` (from 1). */
export async function showCell(
  app: JupyterFrontEnd,
  panel: NotebookPanel,
  place: { cell: number; line: number },
): Promise<void> {
  const notebook = panel.content;
  app.shell.activateById(panel.id);
  await panel.context.ready;
  const index = Math.min(place.cell, notebook.widgets.length - 1);
  if (index < 0) return;
  notebook.activeCellIndex = index;
  notebook.deselectAll();
  await notebook.scrollToItem(index, "smart");
  const cell = notebook.widgets[index];
  if (!cell) return;
  await cell.ready;
  const { editor } = cell;
  if (cell.model.type !== "code" || !editor) return;
  const position = { line: Math.min(Math.max(place.line - 1, 0), editor.lineCount - 1), column: 0 };
  notebook.mode = "edit";
  editor.focus();
  editor.setCursorPosition(position);
  editor.revealPosition(position);
}

/** The open notebook that a project's path means: the current one first, else the one whose path ends like it. */
export function openNotebook(tracker: INotebookTracker, file: string): NotebookPanel | null {
  const fits = (panel: NotebookPanel | null): panel is NotebookPanel =>
    panel !== null && `/${panel.context.path}`.endsWith(`/${file}`);
  return fits(tracker.currentWidget) ? tracker.currentWidget : (tracker.find((panel) => fits(panel)) ?? null);
}
