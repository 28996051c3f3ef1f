/** The anywidget: the same card and list, wherever widgets are shown. */

import css from "uplot/dist/uPlot.min.css";

import cardCss from "../style/card.css";
import jobsCss from "../style/jobs.css";
import panelCss from "../style/promote.css";
import { HttpApi } from "./api";
import { mountCard, mountStill } from "./card/card";
import { told } from "./elements";
import { mountJobsWithCard } from "./jobs/withcard";
import { type Page, sharedPage } from "./page";
import { type Disposer, Feed } from "./stream";
import type { Bundle } from "./types";
import { english } from "./words";

interface Model {
  get(name: string): unknown;
}

const STYLE_ID = "slicelift-style";
const NOTHING: Disposer = { dispose: () => undefined };

/** JupyterLab's extension shares what its views use, or its page tells where the server is; elsewhere nothing does. */
function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  addStyle();
  const page = sharedPage(findPage);
  const node = document.createElement("div");
  el.append(node);
  const shown = page ? live(node, model, page) : still(node, model);
  return () => shown.dispose();
}

function live(node: HTMLElement, model: Model, page: Page): Disposer {
  if (model.get("view") === "jobs") return mountJobsWithCard(node, page);
  return mountCard(node, snapshotOf(model) ?? String(model.get("run_id")), page);
}

/** What the kernel sent, and how to see more. */
function still(node: HTMLElement, model: Model): Disposer {
  const snapshot = snapshotOf(model);
  if (snapshot) return mountStill(node, snapshot, { api: noServer, feed: new Feed(noServer), words: english });
  node.append(...told(english.__("Your jobs: open this notebook in JupyterLab, or call `slicelift jobs` in a terminal.")));
  return NOTHING;
}

function snapshotOf(model: Model): Bundle | null {
  const snapshot = model.get("snapshot") as Bundle | null;
  return snapshot?.run_id ? snapshot : null;
}

const noServer = new HttpApi(
  () => Promise.reject(new Error("no server")),
  () => "#",
  english,
);

function findPage(): Page | null {
  const told = document.getElementById("jupyter-config-data")?.textContent;
  if (!told) return null;
  const { baseUrl, token } = JSON.parse(told) as { baseUrl?: string; token?: string };
  if (!baseUrl) return null;
  const address = (path: string) => `${baseUrl.replace(/\/?$/, "/")}slicelift/${path}`;
  const api = new HttpApi((path, init) => fetch(address(path), signed(init, token)), address, english);
  return { api, feed: new Feed(api), words: english };
}

function signed(init: RequestInit, token: string | undefined): RequestInit {
  const headers = new Headers(init.headers);
  const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie)?.[1];
  if (token) headers.set("Authorization", `token ${token}`);
  if (xsrf) headers.set("X-XSRFToken", decodeURIComponent(xsrf));
  return { ...init, headers, credentials: "same-origin" };
}

function addStyle(): void {
  if (document.getElementById(STYLE_ID)) return;
  const style = document.createElement("style");
  style.id = STYLE_ID;
  style.textContent = [css, cardCss, panelCss, jobsCss].join("\n");
  document.head.append(style);
}

export default { render };
