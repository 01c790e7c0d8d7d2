// The view of dead letters: jobs that will not be retried automatically.

import { action } from "./actions.js";
import { ask, path, query } from "./api.js";
import { confirm, facts, open } from "./dialog.js";
import { cell, el, section, table } from "./elements.js";
import { ago, count, moment, ofKind } from "./words.js";

const PAGE = 50;
const WHY = { failed: "failed", crashes: "its workers died", too_old: "too old", asked: "asked for" };

/** The dead letters of one system, page by page. */
export class Letters {
  #starts = [""];

  constructor(kind, name) {
    this.system = kind + "/" + name;
    this.base = [kind, name, "dead"];
    const heads = ["job", "queue", "why", "since", "crashes", "error", "actions"];
    this.list = table("Dead letters", heads.map((head) => ({ name: head, number: head === "crashes", hidden: head === "actions" })), { class: "cards", id: "letters" });
    this.said = el("p", { class: "empty", role: "status", text: "looking" });
    this.older = el("button", { type: "button", text: "Next page", onclick: () => this.#turn(1) });
    this.newer = el("button", { type: "button", text: "Previous page", onclick: () => this.#turn(-1) });
    this.root = section("Dead letters of " + name, null, this.said, el("div", { class: "scroll" }, this.list.root), el("p", { class: "pages" }, this.newer, this.older));
    this.load();
  }

  async load() {
    const after = this.#starts.at(-1);
    try {
      const page = await ask(path(...this.base) + query({ after, limit: PAGE }));
      this.next = page.next;
      this.list.body.replaceChildren(...page.dead.map((job) => this.#row(job)));
      const number = this.#starts.length;
      this.said.textContent = page.dead.length ? `Page ${count(number)}, by name.` : number > 1 ? "No more." : "None: no job was given up.";
    } catch (error) {
      this.said.textContent = error.message;
    }
    this.newer.disabled = this.#starts.length === 1;
    this.older.disabled = !this.next;
  }

  #turn(way) {
    if (way > 0) this.#starts.push(this.next);
    else this.#starts.pop();
    this.load();
  }

  #row(job) {
    return el("tr", { "data-letter": job.id },
      cell("job", job.id, { class: "key" }),
      cell("queue", job.queue, { class: "key" }),
      cell("why", WHY[job.why] ?? job.why ?? ""),
      cell("since", job.at_ms ? ago(job.at_ms) : "", { title: job.at_ms ? moment(job.at_ms) : null }),
      cell("crashes", count(job.crashes), { class: "number" }),
      cell("error", job.error ?? "", { class: "key" }),
      cell("actions", [
        el("button", { type: "button", text: "Show", onclick: () => showJob(job) }),
        action("Put back", () => this.#putBack(job), { "data-action": "put-back" }),
        action("Delete…", () => this.#delete(job), { class: "danger", "data-action": "delete" }),
      ], { class: "buttons" }));
  }

  async #putBack(job) {
    await ask(path(...this.base, "put_back"), { method: "POST", body: { id: job.id } });
    await this.load();
    return `${job.id} is back on ${job.queue}, its crashes forgotten.`;
  }

  async #delete(job) {
    const agreed = await confirm({
      title: "Delete it for good?",
      lines: [`Job “${job.id}” of queue “${job.queue}” and its payload are deleted from ${this.system}. This cannot be undone.`],
      yes: "Delete it",
      danger: true,
    });
    if (!agreed) return null;
    await ask(path(...this.base, "delete"), { method: "POST", body: { id: job.id } });
    await this.load();
    return `${job.id} was deleted.`;
  }
}

function showJob(job) {
  const close = el("button", { type: "button", text: "Close", autofocus: true });
  const dialog = open("Job " + job.id, { class: "details" },
    facts([["queue", job.queue], ["why", WHY[job.why] ?? job.why], ["since", job.at_ms ? moment(job.at_ms) : ""], ["crashes", count(job.crashes)], ["error", job.error]]),
    el("pre", { text: job.payload }),
    el("p", { class: "buttons" }, close));
  close.addEventListener("click", () => dialog.close());
}

/** The dead letters of all systems that have jobs. */
export function lettersView(state, name) {
  const able = state.systems.filter((system) => ofKind(system.kind).dead_letters);
  const wanted = name ? able.filter((each) => each.system === name) : able;
  const parts = wanted.map((each) => new Letters(each.kind, each.system).root);
  const none = el("p", { class: "empty", text: "There is no such system of jobs." });
  return { root: el("div", null, el("h1", { text: "Dead letters" }), parts.length ? parts : none), update() {} };
}
