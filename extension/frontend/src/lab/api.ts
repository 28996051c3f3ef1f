/** The Api inside JupyterLab: its own connection settings carry the token and the XSRF header. */

import { URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";

import { type Api, HttpApi } from "../api";
import { Feed } from "../stream";

const settings = ServerConnection.makeSettings();

/** For every view of this page. */
export const labApi: Api = new HttpApi(
  (path, init) => ServerConnection.makeRequest(address(path), init, settings),
  address,
);

/** The page's one event stream. */
export const labFeed = new Feed(labApi);

function address(path: string): string {
  return URLExt.join(settings.baseUrl, "slicelift/") + path;
}
