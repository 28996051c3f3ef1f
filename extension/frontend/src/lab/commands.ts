/** The commands that our plugins give each other. */

import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { ReadonlyPartialJSONObject } from "@lumino/coreutils";

import type { RunView } from "../types";

export const PROMOTE = "slicelift:promote";
export const JOBS = "slicelift:jobs";
/** Takes `run_id`, and `view` where the caller has one: the tab then shows it at once. */
export const OPEN_RUN = "slicelift:open-run";

export function openRun(app: JupyterFrontEnd, view: RunView): void {
  void app.commands.execute(OPEN_RUN, { run_id: view.run_id, view: view as unknown as ReadonlyPartialJSONObject });
}
