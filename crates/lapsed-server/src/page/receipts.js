// The view of receipts: new ones as they arrive, and a search over all that the server keeps.
//
// The number of rows on the page is bounded. Receipts that arrive faster than a person can read are
// counted instead of drawn; the list on the server contains them all the same.

import { ask, query } from "./api.js";
import { cell, el, say, section, table } from "./elements.js";
import { show } from "./receipt.js";
import { REASONS, ago, clock, count, holder, moment, place, reason, some, span } from "./words.js";

const ROWS = 100;
const PAGE = 50;
const BEAT_MS = 200;
const TRIES = 10;

/** A list of receipts that grows at its top. `fits` decides which new receipts belong to it. */
class Rows {
  #waiting = [];
  #skipped = 0;
  #drawn_ms = 0;
  #timer = null;
  #ids = new Set();
  #held = 0;
  paused = false;

  constructor(caption, fits) {
    this.fits = fits;
    const heads = ["when", "system", "key", "owner", "why", "late", "receipt"];
    this.list = table(caption, heads.map((head) => ({ name: head, number: head === "late" })), { class: "cards receipts", id: "receipts" });
    this.more = el("p", { class: "soft", role: "status", hidden: true });
    this.none = el("p", { class: "empty", text: "Nothing was reclaimed yet." });
    this.missing = el("p", { class: "why", role: "alert", "data-notice": "missing", hidden: true });
  }

  /** Names the systems whose receipts are not in the list, because their stores do not answer. */
  lack(systems) {
    this.missing.hidden = systems.length === 0;
    say(this.missing, systems.length ? `Not shown, because the store does not answer: ${systems.map(({ system, error }) => `${system} (${error})`).join(", ")}` : "");
    this.unknown = systems.length > 0;
    this.none.hidden = this.none.hidden || this.unknown;
  }

  /** Pauses drawing: receipts that arrive now may also be in the list that is being fetched. */
  hold() {
    this.#held += 1;
  }

  letGo() {
    this.#held -= 1;
    this.#plan();
  }

  /** Sets the initial content, newest first. The caller must have paused drawing before it fetched the list. */
  begin(receipts, missing = []) {
    this.#skipped = 0;
    this.more.hidden = true;
    this.#ids = new Set(receipts.map((receipt) => receipt.id));
    this.list.body.replaceChildren(...receipts.map((receipt) => this.#row(receipt)));
    this.lack(missing);
    this.none.hidden = receipts.length > 0 || this.unknown;
  }

  /** Adds a receipt that has just arrived, as unparsed text, because most receipts of a flood are never shown. */
  take(data) {
    if (this.fits) {
      const receipt = JSON.parse(data);
      if (!this.fits(receipt)) return;
    }
    this.#waiting.push(data);
    if (this.#waiting.length >= 2 * ROWS) {
      this.#waiting.splice(0, ROWS);
      this.#skipped += ROWS;
    }
    this.#plan();
  }

  pause(paused) {
    this.paused = paused;
    this.#plan();
  }

  /** Schedules the next drawing: at most a few per second, and none while the page is hidden. */
  #plan() {
    if (this.#timer || this.#held > 0 || this.#waiting.length === 0) return;
    const wait = Math.max(0, this.#drawn_ms + BEAT_MS - performance.now());
    this.#timer = setTimeout(() => requestAnimationFrame(() => { this.#timer = null; this.#draw(); }), wait);
  }

  #draw() {
    if (this.#held > 0) return;
    if (this.paused) {
      this.#tellMore(`${count(this.#waiting.length + this.#skipped)} more have come`);
      return;
    }
    this.#drawn_ms = performance.now();
    const waiting = this.#waiting.splice(0);
    this.#skipped += Math.max(0, waiting.length - ROWS);
    const fresh = waiting.slice(-ROWS).map((data) => JSON.parse(data)).filter((receipt) => !this.#ids.has(receipt.id));
    for (const receipt of fresh) this.#ids.add(receipt.id);
    this.list.body.prepend(...fresh.reverse().map((receipt) => this.#row(receipt)));
    this.#trim();
    this.none.hidden = this.list.body.childElementCount > 0 || this.unknown;
    if (this.#skipped > 0) this.#tellMore(`${some(this.#skipped, "receipt")} came too fast to be shown here`);
  }

  #trim() {
    while (this.list.body.childElementCount > ROWS) {
      this.#ids.delete(this.list.body.lastElementChild.dataset.receipt);
      this.list.body.lastElementChild.remove();
    }
  }

  #tellMore(text) {
    this.more.hidden = false;
    this.more.replaceChildren(text + ": ", el("a", { href: "#/receipts", text: "see them all" }));
  }

  #row(receipt) {
    const { kind, name, system } = place(receipt.id);
    const here = `#/system/${kind}/${name}`;
    const row = el("tr", { "data-receipt": receipt.id },
      cell("when", clock(receipt.at_ms), { title: moment(receipt.at_ms), class: "time" }),
      cell("system", el("a", { href: here, text: system })),
      cell("key", el("a", { href: here + "?explain=" + encodeURIComponent(receipt.key), text: receipt.key }), { class: "key" }),
      cell("owner", holder(receipt), { class: "key" }),
      cell("why", why(receipt)),
      cell("late", receipt.reason === "owner_retired" ? "" : span(receipt.evidence.late_ms), { class: "number" }),
      cell("receipt", el("button", { type: "button", class: "quiet", "aria-label": "Show receipt " + receipt.id, text: "#" + place(receipt.id).seq, onclick: () => show(receipt.id, () => this.changed?.()) })));
    return row;
  }
}

function why(receipt) {
  const did = receipt.removed?.did ? ", " + receipt.removed.did.replaceAll("_", " ") : "";
  return reason(receipt.reason) + did + (receipt.restored_ms ? ", restored" : "");
}

/** The view of new receipts, of one system or of all. */
export function liveReceipts(feed, system) {
  const rows = new Rows("Receipts as they come", system ? (receipt) => place(receipt.id).system === system : null);
  const pause = el("button", { type: "button", text: "Pause", "aria-pressed": "false" });
  pause.addEventListener("click", () => {
    rows.pause(!rows.paused);
    say(pause, rows.paused ? "Go on" : "Pause");
    pause.setAttribute("aria-pressed", String(rows.paused));
  });
  const load = async () => {
    rows.hold();
    const page = await ask("/v1/receipts" + query({ system, limit: PAGE })).catch((error) => {
      rows.lack([{ system: system ?? "all systems", error: error.message }]);
    });
    if (page) rows.begin(page.receipts, page.missing);
    rows.letGo();
  };
  rows.changed = load;
  const leave = feed.join({ receipt: (data) => rows.take(data), fresh: load, missing: load });
  const all = el("a", { href: "#/receipts" + query({ system }), text: "search all of them" });
  const root = section("Receipts", { class: "live" }, el("p", { class: "line" }, pause, rows.more, all), rows.missing, rows.none, el("div", { class: "scroll" }, rows.list.root));
  return { root, leave };
}

function select(id, label, options, value) {
  const choices = options.map(([word, text]) => el("option", { value: word, text, selected: word === value }));
  return el("p", null, el("label", { for: id, text: label }), el("select", { id, name: id }, choices));
}

const SINCE = [["", "any time"], ["900000", "15 minutes"], ["3600000", "an hour"], ["86400000", "a day"], ["604800000", "a week"]];

/** The view of all receipts that are kept, filtered and paged by the server. */
export class Search {
  #starts = [null];
  #turn = 0;

  constructor(state, feed, asked) {
    this.asked = asked;
    this.rows = new Rows("Receipts", (receipt) => this.#fits(receipt));
    this.rows.changed = () => this.load();
    this.said = el("p", { class: "soft", role: "status", id: "found" });
    this.newer = el("button", { type: "button", text: "Newer", onclick: () => this.#go(-1) });
    this.older = el("button", { type: "button", text: "Older", onclick: () => this.#go(1) });
    this.leave = feed.join({ receipt: (data) => { if (this.#starts.length === 1) this.rows.take(data); }, fresh: () => this.load(), missing: () => this.load() });
    this.root = el("div", null, el("h1", { text: "Receipts" }), this.#form(state), this.said, this.rows.missing, this.rows.none,
      el("div", { class: "scroll" }, this.rows.list.root), el("p", { class: "pages" }, this.newer, this.older));
  }

  update() {}

  #form(state) {
    const systems = state.systems.map(({ kind, system }) => [kind + "/" + system, kind + "/" + system]);
    const search = el("input", { id: "search", name: "search", type: "search", value: this.asked.search ?? "", maxlength: 512, spellcheck: "false", placeholder: "part of a key or an owner" });
    const form = el("form", { class: "filters", role: "search" },
      el("p", { class: "wide" }, el("label", { for: "search", text: "Key or owner" }), search),
      select("system", "System", [["", "all"], ...systems], this.asked.system),
      select("reason", "Why", [["", "any reason"], ...Object.entries(REASONS)], this.asked.reason),
      select("since", "Within", SINCE, this.asked.since),
      el("p", null, el("button", { class: "primary", text: "Search" })));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      location.hash = "#/receipts" + query(Object.fromEntries(new FormData(form)));
    });
    form.addEventListener("change", (event) => { if (event.target.tagName === "SELECT") form.requestSubmit(); });
    return form;
  }

  #fits(receipt) {
    const { system, reason: wanted, search = "" } = this.asked;
    const text = search.toLowerCase();
    return (!system || place(receipt.id).system === system)
      && (!wanted || receipt.reason === wanted)
      && (receipt.key.toLowerCase().includes(text) || receipt.owner.toLowerCase().includes(text));
  }

  #go(way) {
    if (way > 0) this.#starts.push(this.next);
    else this.#starts.pop();
    this.load();
  }

  async load() {
    this.rows.hold();
    await this.#look();
    this.rows.letGo();
  }

  /** Fetches one page. The server examines a limited number of receipts per request, so a rare match takes several requests. */
  async #look() {
    const turn = ++this.#turn;
    const { system, reason: wanted, search, since } = this.asked;
    const since_ms = since ? Date.now() - Number(since) : undefined;
    const found = [];
    let missing = [];
    let [before, examined] = [this.#starts.at(-1), 0];
    try {
      for (let tries = 0; tries < TRIES && found.length < PAGE; tries += 1) {
        const page = await ask("/v1/receipts" + query({ system, reason: wanted, search, since_ms, before, limit: PAGE - found.length }));
        if (turn !== this.#turn) return;
        found.push(...page.receipts);
        missing = page.missing ?? [];
        examined += page.examined ?? page.receipts.length;
        this.next = page.next;
        if (!page.next) break;
        before = page.next;
        say(this.said, `looked at ${count(examined)} receipts so far`);
      }
    } catch (error) {
      say(this.said, error.message);
      return;
    }
    this.#tell(found, examined, missing);
  }

  #tell(found, examined, missing) {
    this.rows.begin(found, missing);
    this.rows.none.textContent = "None.";
    const first = found.at(-1);
    const page = this.#starts.length > 1 ? `page ${this.#starts.length}, ` : "";
    say(this.said, `${page}${some(found.length, "receipt")}${first ? ", back to " + ago(first.at_ms) : ""}${examined > found.length ? `, ${count(examined)} looked at` : ""}${this.next ? "" : "; there are no older ones"}`);
    this.newer.disabled = this.#starts.length === 1;
    this.older.disabled = !this.next;
  }
}
