// The view of passes: the last passes and why they stopped. A new pass can be started only after
// its dry run was shown.

import { action, looking, tell } from "./actions.js";
import { ask, path } from "./api.js";
import { cell, el, section, table } from "./elements.js";
import { ago, count, holder, moment, reason, some, span, stopped } from "./words.js";

const SHOWN = 20;
const LISTED = 200;
const STATES = { error: "bad", brake: "warn", runtime: "warn", ops: "warn" };

/** A short summary of what a pass did. */
export function did(pass) {
  if (pass.suspects || pass.reclaimed || pass.released) return account(pass);
  return pass.stopped === "done" ? "nothing to do" : "nothing reclaimed";
}

function account(pass) {
  const parts = [`${count(pass.reclaimed)} of ${some(pass.suspects, "suspect")} reclaimed`];
  if (pass.released) parts.push(`${count(pass.released)} let go from dead owners`);
  for (const [why, number] of Object.entries(pass.skipped ?? {})) parts.push(`${count(number)} ${why.replaceAll("_", " ")}`);
  return parts.join(", ");
}

function row(pass) {
  const idle = pass.repeated > 0 ? ` and ${some(pass.repeated, "pass", "passes")} before it` : "";
  return el("tr", null,
    cell("when", ago(pass.started_ms) + idle, { title: moment(pass.started_ms) }),
    cell("did", did(pass)),
    cell("took", span(pass.took_ms), { class: "number" }),
    cell("stopped", [el("span", { class: "chip", "data-state": STATES[pass.stopped] ?? "soft", text: stopped(pass.stopped) }), pass.detail ? el("span", { class: "why", text: " " + pass.detail }) : null]));
}

export function passList() {
  const list = table("Last passes", [{ name: "when" }, { name: "did" }, { name: "took", number: true }, { name: "stopped" }], { class: "cards", id: "passes" });
  const none = el("p", { class: "empty", text: "No pass yet in this process." });
  return {
    root: section("Last passes", null, none, el("div", { class: "scroll" }, list.root)),
    update(passes) {
      none.hidden = passes.length > 0;
      list.root.hidden = passes.length === 0;
      list.body.replaceChildren(...passes.slice(0, SHOWN).map(row));
    },
  };
}

function listed(entry) {
  return el("tr", null,
    cell("key", entry.key, { class: "key" }),
    cell("owner", holder(entry), { class: "key" }),
    cell("why", reason(entry.reason)),
    cell("late", span(entry.late_ms), { class: "number" }));
}

function entryTable(report) {
  const list = table("What the pass would reclaim", [{ name: "key" }, { name: "owner" }, { name: "why" }, { name: "late", number: true }], { class: "cards", id: "dry-list" });
  list.body.replaceChildren(...(report.entries ?? []).map(listed));
  return el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "What the pass would reclaim" }, list.root);
}

/** The summary above the list of a dry run. */
function foretold(report) {
  if (report.stopped === "error") return `The dry run failed: ${report.detail ?? "the store does not answer"}.`;
  if (report.reclaimed === 0) return `Nothing would be reclaimed${report.detail ? ": " + report.detail : ""}.`;
  const shown = report.entries_cut ? `, of which ${count(report.entries.length)} are listed` : "";
  const held = report.detail ? ` ${report.detail}.` : "";
  return `A pass now would reclaim ${some(report.reclaimed, "entry", "entries")}${shown}.${held}`;
}

/** Runs a dry run and shows its list; only then is the real pass offered. */
export function passNow(kind, name) {
  const out = el("div", { id: "dry", "aria-live": "polite" });
  const url = path("sweeps", kind, name);
  const real = async () => {
    const report = await ask(url, { method: "POST", body: { list: LISTED } });
    out.replaceChildren(el("p", { id: "pass-report", text: `Done in ${span(report.took_ms)}: ${account(report)}. It stopped: ${stopped(report.stopped)}${report.detail ? " (" + report.detail + ")" : ""}.` }));
    tell(`${some(report.reclaimed, "entry", "entries")} reclaimed.`);
  };
  const dry = async () => {
    const report = await ask(url, { method: "POST", body: { dry_run: true, list: LISTED } });
    out.replaceChildren(el("p", { id: "dry-report", text: foretold(report) }));
    if (report.reclaimed === 0) return;
    const button = action(`Reclaim ${report.reclaimed === 1 ? "it" : "them"} now`, real, { class: "danger", "data-action": "pass" });
    out.append(entryTable(report), el("p", { class: "buttons" },
      el("span", { class: "soft", text: "The store checks each again: an owner that has sent a heartbeat since is spared." }), button));
  };
  return section("A pass now", null,
    el("p", { class: "line" }, looking("Dry run", dry, { "data-action": "dry" }), el("span", { class: "soft", text: "says what a pass would reclaim, and changes nothing" })),
    out);
}
