/** The plugins of the labextension. */

import { jobs } from "./jobs";
import { notify } from "./notify";
import { promote } from "./promote";
import { renderer } from "./renderer";

export default [renderer, promote, jobs, notify];
