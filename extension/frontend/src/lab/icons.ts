/** Our own icons, drawn in the theme's colours. */

import { LabIcon } from "@jupyterlab/ui-components";

const svg = (paths: string): string =>
  `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">` +
  `<g class="jp-icon3" fill="#616161">${paths}</g></svg>`;

/** An arrow from one block up to many. */
export const promoteIcon = new LabIcon({
  name: "slicelift:promote",
  svgstr: svg(
    `<rect x="2" y="11" width="3" height="3" rx=".6"/><rect x="6.5" y="11" width="3" height="3" rx=".6"/>` +
      `<rect x="11" y="11" width="3" height="3" rx=".6"/><path d="M8 1.5 12 6H9v3.5H7V6H4z"/>`,
  ),
});

/** Three jobs below each other, each with its state. */
export const jobsIcon = new LabIcon({
  name: "slicelift:jobs",
  svgstr: svg(
    `<circle cx="3.2" cy="3.5" r="1.7"/><rect x="6.5" y="2.6" width="8" height="1.8" rx=".6"/>` +
      `<circle cx="3.2" cy="8" r="1.7"/><rect x="6.5" y="7.1" width="8" height="1.8" rx=".6"/>` +
      `<circle cx="3.2" cy="12.5" r="1.7"/><rect x="6.5" y="11.6" width="8" height="1.8" rx=".6"/>`,
  ),
});
