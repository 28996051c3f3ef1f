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

/** Three jobs over time, one bar each; bars below each other with dots before them are the table of contents. */
export const jobsIcon = new LabIcon({
  name: "slicelift:jobs",
  svgstr: svg(
    `<rect x="1.5" y="2" width="7" height="3" rx="1"/><rect x="4.5" y="6.5" width="10" height="3" rx="1"/>` +
      `<rect x="8" y="11" width="5" height="3" rx="1"/>`,
  ),
});
