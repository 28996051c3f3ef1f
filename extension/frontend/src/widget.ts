/** The anywidget: the same card and list, wherever widgets are shown. */

import css from "uplot/dist/uPlot.min.css";

import cardCss from "../style/card.css";
import jobsCss from "../style/jobs.css";
import panelCss from "../style/promote.css";
import { type Api, HttpApi } from "./api";
import { mountCard } from "./card/card";
import { mountJobs } from "./jobs/list";
import { type Disposer, Feed } from "./stream";
import type { Bundle } from "./types";
import { english } from "./words";

interface Model {
  get(name: string): any;
}

interface Server {
  api: Api;
  feed: Feed;
}

const STYLE_ID = "slicelift-style";
const words = english;

/** JupyterLab's own page tells where the server is; in other places (VS Code, Colab) nothing does. */
function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  addStyle();
  const server = sharedServer();
  const node = document.createElement("div");
  el.append(node);
  const shown = server ? live(node, model, server) : still(node, model);
  return () => shown.dispose();
}

function live(node: HTMLElement, model: Model, server: Server): Disposer {
  if (model.get("view") === "jobs") return mountJobs(node, { ...server, words, openRun: (run) => toCard(node, run, server) });
  const snapshot = model.get("snapshot") as Bundle | null;
  return mountCard(node, snapshot?.run_id ? snapshot : (model.get("run_id") as string), { ...server, words });
}

/** A run opened from the list is shown below it. */
function toCard(list: HTMLElement, run: string, server: Server): void {
  const old = list.nextElementSibling;
  if (old) (old as HTMLElement & { card?: Disposer }).card?.dispose();
  old?.remove();
  const place: HTMLElement & { card?: Disposer } = document.createElement("div");
  list.after(place);
  place.card = mountCard(place, run, { ...server, words });
}

/** No server in reach: what the kernel sent, and how to see more. */
function still(node: HTMLElement, model: Model): Disposer {
  const said = document.createElement("p");
  said.className = "sl-notice";
  said.textContent = words.__("Live updates need JupyterLab; here you see the run as it was when this cell ran.");
  const place = document.createElement("div");
  node.append(said, place);
  const snapshot = model.get("snapshot") as Bundle | null;
  if (!snapshot?.run_id) return { dispose: () => undefined };
  const feed = { watch: () => ({ dispose: () => undefined }), again: () => undefined } as unknown as Feed;
  return mountCard(place, snapshot, { api: noServer, feed, words });
}

const noServer = new HttpApi(
  () => Promise.reject(new Error("no server")),
  () => "#",
);

/** One stream per page also for several widgets. */
function sharedServer(): Server | null {
  const page = window as typeof window & { slicelift?: Server };
  page.slicelift ??= findServer() ?? undefined;
  return page.slicelift ?? null;
}

function findServer(): Server | null {
  const told = document.getElementById("jupyter-config-data")?.textContent;
  if (!told) return null;
  const { baseUrl, token } = JSON.parse(told) as { baseUrl?: string; token?: string };
  if (!baseUrl) return null;
  const address = (path: string) => `${baseUrl.replace(/\/?$/, "/")}slicelift/${path}`;
  const api = new HttpApi((path, init) => fetch(address(path), signed(init, token)), address);
  return { api, feed: new Feed(api) };
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
