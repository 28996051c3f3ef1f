/** The page's one connection and language inside JupyterLab: its own settings carry the token and the XSRF header. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";
import { ITranslator, ITranslatorConnector, nullTranslator } from "@jupyterlab/translation";
import { Token } from "@lumino/coreutils";

import { HttpApi } from "../api";
import { type Page, sharePage } from "../page";
import type { Catalogue } from "../said";
import { Feed } from "../stream";
import { makeWords } from "../words";

const DOMAIN = "slicelift";

export const IPage = new Token<Page>("slicelift:IPage", "The connection, the event stream and the language of Slicelift's views.");

export const page: JupyterFrontEndPlugin<Page> = {
  id: "slicelift:page",
  description: "One connection and one event stream for all views.",
  autoStart: true,
  provides: IPage,
  optional: [ITranslator, ITranslatorConnector],
  activate: async (
    app: JupyterFrontEnd,
    translator: ITranslator | null,
    connector: ITranslatorConnector | null,
  ): Promise<Page> => {
    const texts = (translator ?? nullTranslator).load(DOMAIN);
    const words = makeWords(texts, await catalogueOf(translator, connector));
    const settings = app.serviceManager.serverSettings;
    const address = (path: string) => URLExt.join(settings.baseUrl, "slicelift/") + path;
    const send = (path: string, init: RequestInit) => ServerConnection.makeRequest(address(path), init, settings);
    const api = new HttpApi(send, address, words);
    const made = { api, words, feed: new Feed(api) };
    sharePage(made);
    return made;
  },
};

/** The catalogue of the chosen language once more: JupyterLab's bundle answers for a text, and lists none. */
async function catalogueOf(translator: ITranslator | null, connector: ITranslatorConnector | null): Promise<Catalogue> {
  const language = translator?.languageCode ?? "en";
  if (!connector || language === "en") return {};
  try {
    const { data } = await connector.fetch({ language: language.replace("-", "_") });
    return (data?.[DOMAIN] ?? {}) as Catalogue;
  } catch {
    return {}; // what the server says stays English then
  }
}

export default page;
