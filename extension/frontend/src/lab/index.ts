/** The plugins of the labextension. */

import { jobs } from "./jobs";
import { notify } from "./notify";
import { page } from "./page";
import { promote } from "./promote";
import { renderer } from "./renderer";

export default [page, renderer, promote, jobs, notify];
