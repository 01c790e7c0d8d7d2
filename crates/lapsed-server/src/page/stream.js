// The stream of receipts, read by `fetch`, because an EventSource cannot send a token.
//
// The cursor moves with every event that arrived completely. After a disconnect the stream resumes
// at the cursor, without a gap and without duplicates. A stream that is silent for too long counts
// as disconnected.

import { headers, query } from "./api.js";

const SILENCE_MS = 40_000;
const PAUSE_MS = 500;
const PAUSE_MS_MAX = 8_000;

/** Splits a stream of bytes into server-sent events. */
export class Cutter {
  #rest = "";
  #event = { name: "", id: "", data: "" };

  /** The events that `text` completes. */
  push(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    const whole = [];
    for (const line of lines) this.#line(line, whole);
    return whole;
  }

  #line(line, whole) {
    if (line === "" || line === "\r") {
      if (this.#event.data !== "") whole.push(this.#event);
      this.#event = { name: "", id: "", data: "" };
      return;
    }
    const colon = line.indexOf(":");
    if (colon <= 0) return;
    const start = line[colon + 1] === " " ? colon + 2 : colon + 1;
    const value = line.endsWith("\r") ? line.slice(start, -1) : line.slice(start);
    const field = line.slice(0, colon);
    if (field === "event") this.#event.name = value;
    else if (field === "id") this.#event.id = value;
    else if (field === "data") this.#event.data += (this.#event.data ? "\n" : "") + value;
  }
}

/** The stream. Callbacks: `onReceipt(data)`, `onFresh()` when it begins without a cursor, `onMissing()` when a store stops or begins to answer, `onState(state)`. */
export class Stream {
  #cursor = "";
  #pause_ms = PAUSE_MS;
  #abort = null;
  #stopped = false;
  #retry = null;
  #hurry = () => this.#retry?.();

  constructor(heard) {
    this.heard = heard;
    addEventListener("online", this.#hurry);
  }

  async run() {
    while (!this.#stopped) {
      const why = await this.#follow().catch((error) => error);
      if (this.#stopped) return;
      if (why?.refused) {
        this.heard.onState("refused", why.refused);
        return;
      }
      this.heard.onState("lost");
      await this.#wait();
    }
  }

  stop() {
    this.#stopped = true;
    removeEventListener("online", this.#hurry);
    this.#abort?.abort();
    this.#hurry();
  }

  /** Drops a connection that may be broken without an error, and reconnects with the cursor. */
  renew() {
    this.#abort?.abort();
    this.#hurry();
  }

  /** Reads one connection from its first event to its end. */
  async #follow() {
    this.#abort = new AbortController();
    const watch = this.#watch();
    try {
      const from = this.#cursor;
      const answer = await fetch("/v1/events" + query({ cursor: from }), { headers: headers({ accept: "text/event-stream" }), signal: this.#abort.signal, cache: "no-store" });
      if (!answer.ok) return await this.#turnedAway(answer);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const cutter = new Cutter();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        watch.seen();
        for (const event of cutter.push(value)) this.#hear(event, from);
      }
    } finally {
      watch.end();
    }
  }

  #hear(event, from) {
    if (event.name === "cursor") {
      this.#pause_ms = PAUSE_MS;
      this.heard.onState("live");
      if (!from) this.heard.onFresh();
    }
    if (event.name === "missing") this.heard.onMissing();
    if (event.name === "receipt") this.heard.onReceipt(event.data);
    if (event.id) this.#cursor = event.id;
  }

  /** Handles a refused connection: an unknown cursor makes the stream begin anew, a refused token ends it. */
  async #turnedAway(answer) {
    if (answer.status === 401 || answer.status === 403) return { refused: answer.status };
    if (answer.status === 400 || answer.status === 422) this.#cursor = "";
    return answer.status;
  }

  #watch() {
    let timer = null;
    const seen = () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.#abort.abort(), SILENCE_MS);
    };
    seen();
    return { seen, end: () => clearTimeout(timer) };
  }

  #wait() {
    const pause = this.#pause_ms * (0.75 + Math.random() / 2);
    this.#pause_ms = Math.min(this.#pause_ms * 2, PAUSE_MS_MAX);
    return new Promise((go) => {
      const timer = setTimeout(go, pause);
      this.#retry = () => { clearTimeout(timer); go(); };
    });
  }
}
