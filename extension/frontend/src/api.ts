/** One HTTP face of the server extension, for JupyterLab and for the widget. */

import type { Words } from "./words";

export interface Api {
  /** GET `<base>/slicelift/<path>`, JSON. Every call throws ApiError. */
  get<T>(path: string): Promise<T>;
  post<T>(path: string, body?: unknown): Promise<T>;
  /** A log: its text and the offset where the next call goes on (the one asked for when the answer names none). */
  text(path: string): Promise<{ text: string; next: number }>;
  /** POST with an NDJSON answer: `each` is called per line as it arrives. */
  lines<T>(path: string, body: unknown, each: (line: T) => void): Promise<void>;
  /** The body of an event stream. `lastId` empty: from now. */
  stream(path: string, signal: AbortSignal, lastId: string): Promise<ReadableStream<Uint8Array>>;
  /** For links (outputs, downloads). */
  url(path: string): string;
}

/** Status 0: the Jupyter server itself did not answer. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint = "",
    readonly detail: unknown = null,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

export type Send = (path: string, init: RequestInit) => Promise<Response>;

/** The calls above over one `send`, which adds the address, the token and the XSRF header; faults in the reader's words. */
export class HttpApi implements Api {
  constructor(
    private readonly send: Send,
    private readonly address: (path: string) => string,
    private readonly words: Words,
  ) {}

  async get<T>(path: string): Promise<T> {
    return (await this.call(path, { method: "GET", cache: "no-store" })).json() as Promise<T>;
  }

  async post<T>(path: string, body: unknown = {}): Promise<T> {
    return (await this.call(path, posted(body))).json() as Promise<T>;
  }

  async text(path: string): Promise<{ text: string; next: number }> {
    const response = await this.call(path, { method: "GET", cache: "no-store" });
    const bytes = await response.arrayBuffer();
    const offset = Number(/[?&]offset=(-?\d+)/.exec(path)?.[1] ?? 0);
    const told = response.headers.get("X-Next-Offset");
    const next = told === null ? Math.max(offset, 0) + bytes.byteLength : Number(told);
    const cut = cutBytes(new Uint8Array(bytes));
    return { text: new TextDecoder().decode(bytes.slice(0, bytes.byteLength - cut)), next: next - cut };
  }

  async lines<T>(path: string, body: unknown, each: (line: T) => void): Promise<void> {
    const stream = (await this.call(path, posted(body))).body;
    if (!stream) return;
    for await (const line of splitAt(stream, "\n")) if (line.trim()) each(JSON.parse(line) as T);
  }

  async stream(path: string, signal: AbortSignal, lastId: string): Promise<ReadableStream<Uint8Array>> {
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    if (lastId) headers["Last-Event-ID"] = lastId;
    const response = await this.call(path, { method: "GET", headers, signal, cache: "no-store" });
    if (!response.body) throw new ApiError(0, "no-stream", this.words.__("The server answered without a stream."));
    return response.body;
  }

  url(path: string): string {
    return this.address(path);
  }

  private async call(path: string, init: RequestInit): Promise<Response> {
    let response: Response;
    try {
      response = await this.send(path, init);
    } catch (cause) {
      if (init.signal?.aborted) throw cause;
      const { words } = this;
      const hint = words.__("Check that JupyterLab still runs, then try again.");
      throw new ApiError(0, "server-away", words.__("The Jupyter server does not answer."), hint, String(cause));
    }
    if (!response.ok) throw await errorOf(response, this.words);
    return response;
  }
}

/** Pieces of a byte stream between two `mark`s, as they arrive; the last one may lack its mark. */
export async function* splitAt(stream: ReadableStream<Uint8Array>, mark: string): AsyncGenerator<string> {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += decoder.decode(value, { stream: !done });
      const pieces = rest.split(mark);
      rest = pieces.pop() ?? "";
      yield* pieces;
      if (done) break;
    }
    if (rest) yield rest;
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

/** How many bytes at the end begin a character (UTF-8) that is not all there yet: the next call reads them again. */
function cutBytes(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back];
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    if (byte < 0x80 || byte >= 0xc0) return length > back ? back : 0;
  }
  return 0;
}

function posted(body: unknown): RequestInit {
  return { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
}

/** A fault as `{code, message, hint}`; whatever else answers (a proxy, a login page) by its status. */
async function errorOf(response: Response, words: Words): Promise<ApiError> {
  const { status, statusText } = response;
  const body = (await response.json().catch(() => null)) as Partial<Body> | null;
  if (body?.message) {
    const { code = "http-error", message, hint = "", detail = null } = body;
    return new ApiError(status, code, words.say(message), words.say(hint), detail);
  }
  const hint = words.__("Try again in a moment; if it stays, reload the page.");
  return new ApiError(status, "http-error", words.__("The server answered: %1", `${status} ${statusText}`.trim()), hint);
}

interface Body {
  code: string;
  message: string;
  hint: string;
  detail: unknown;
}
