// The view of stores: whether each one answers, how fast, and how far its clock is off.

import { cell, el, mark, section, table } from "./elements.js";
import { now, span } from "./words.js";

/** The thresholds above which a store counts as slow, and its clock as off; both are then highlighted. */
const SLOW_US = 100_000;
const OFF_MS = 1_000;

function latency(store) {
  const ms = store.latency_us / 1_000;
  return ms < 1 ? store.latency_us + " µs" : ms < 10 ? ms.toFixed(1) + " ms" : span(ms);
}

function offset(store) {
  const ms = store.clock_offset_ms;
  if (ms === null) return "";
  if (Math.abs(ms) < 2) return "none";
  return span(Math.abs(ms)) + (ms > 0 ? " ahead" : " behind");
}

function row(store) {
  const state = store.answers ? "good" : "bad";
  const off = Math.abs(store.clock_offset_ms ?? 0) >= OFF_MS;
  return el("tr", { "data-store": store.name },
    cell("store", el("strong", { text: store.name })),
    cell("state", el("span", { class: "chip", "data-state": state, text: store.answers ? "answers" : "does not answer" })),
    cell("engine", store.engine ?? "unknown"),
    cell("latency", latency(store), { class: "number", "data-state": store.latency_us > SLOW_US ? "warn" : null }),
    cell("clock offset", offset(store), { class: "number", "data-state": off ? "warn" : null }),
    cell("serving", store.serving_since_ms ? "for " + span(Math.max(0, now() - store.serving_since_ms)) : "", { class: "number" }),
    cell("place", store.error ? el("span", { class: "why", text: store.error }) : store.place, { class: "long" }));
}

export function storeTable() {
  const heads = ["store", "state", "engine", "latency", "clock offset", "serving", "place"];
  const numbers = ["latency", "clock offset", "serving"];
  const list = table("Stores", heads.map((name) => ({ name, number: numbers.includes(name) })), { class: "cards", id: "stores" });
  const root = section("Stores", null, el("div", { class: "scroll" }, list.root));
  let drawn = "";
  return {
    root,
    update(stores) {
      const rows = stores.map(row);
      const text = rows.map((line) => line.textContent).join();
      if (text === drawn) return;
      drawn = text;
      list.body.replaceChildren(...rows);
      mark(root, stores.every((store) => store.answers) ? "good" : "bad");
    },
  };
}
