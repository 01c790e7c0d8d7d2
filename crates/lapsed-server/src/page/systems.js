// The view of systems: an overview with one card per system, and a page with all details of one
// system.

import { action } from "./actions.js";
import { ask, path } from "./api.js";
import { lagChart, reclaimChart } from "./charts.js";
import { confirm } from "./dialog.js";
import { el, mark, say } from "./elements.js";
import { explainer } from "./explain.js";
import { Letters } from "./letters.js";
import { did, passList, passNow } from "./passes.js";
import { liveReceipts } from "./receipts.js";
import { ago, count, ofKind, roundSpan, some, stopped } from "./words.js";

/** The counts of a system: name, value, and whether it is highlighted. */
function figures(status) {
  const { census, jobs, availability, kind } = status;
  const list = [];
  if (census && !census.uncounted) {
    list.push([ofKind(kind).entries, count(census.population), ""]);
    list.push(["suspects", count(census.suspects), census.suspects ? "warn" : ""]);
    if (ofKind(kind).owners) list.push(["alive", count(census.owners_live), ""], ["overdue", count(census.owners_overdue), census.owners_overdue ? "warn" : ""]);
  }
  if (availability?.available !== null && availability) list.push(["available", count(availability.available), ""]);
  if (jobs) list.push(["queued", count(jobs.queued), ""], ["dead letters", count(jobs.dead), jobs.dead ? "warn" : ""]);
  return list;
}

function figureList() {
  const root = el("dl", { class: "figures" });
  return {
    root,
    update(status) {
      const list = figures(status);
      root.toggleAttribute("data-many", list.length > 5);
      if (root.childElementCount !== list.length) root.replaceChildren(...list.map(() => el("div", null, el("dt"), el("dd"))));
      list.forEach(([name, value, state], index) => {
        const [term, number] = root.children[index].children;
        say(term, name);
        say(number, value);
        mark(number, state);
        number.dataset.figure = name;
      });
    },
  };
}

const WORDS = { auto: "Auto", hold: "Hold", override: "Override" };
const TOLD = { auto: "decides by itself again", hold: "holds: nothing more is declared dead until it is released", override: "lets one pass through" };

/** The brake: its state in words, and the buttons for its three settings. */
function brakeOf(kind, name, refresh) {
  const words = el("p", { class: "words" });
  let status = null;
  const order = async (setting) => {
    const body = { setting };
    if (setting === "override") {
      body.reason = await agreed(kind, name, status);
      if (!body.reason) return null;
    }
    await ask(path("brakes", kind, name), { method: "PUT", body });
    await refresh();
    return `The brake of ${kind}/${name} ${TOLD[setting]}.`;
  };
  const buttons = Object.entries(WORDS).map(([setting, text]) => action(text, () => order(setting), { "data-action": setting, "aria-label": `${text}: the brake of ${kind}/${name}` }));
  const root = el("div", { class: "brake" }, words, el("div", { class: "choice", role: "group", "aria-label": `Brake of ${kind}/${name}` }, buttons));
  return {
    root,
    update(next) {
      status = next;
      const brake = next.brake;
      say(words, brake ? "Brake: " + brake.words : "Brake: not known while the store does not answer");
      mark(words, brake?.state === "open" ? "good" : "warn");
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.action === brake?.setting));
    },
  };
}

/** Asks for the reason of an override; empty if the answer is no. */
function agreed(kind, name, status) {
  const census = status?.census;
  const dead = census ? `${some(census.suspects, "suspect")} and ${some(census.owners_overdue, "overdue owner")} now, of ${some(census.population, "entry", "entries")}.` : "";
  return confirm({
    title: `Override the brake of ${kind}/${name} for one pass?`,
    lines: ["The next pass reclaims whatever is dead, however many they are. After it the brake decides by itself again.", dead, "Ask for a dry run first if you are not sure that they are dead."],
    ask: "Reason, kept in the audit log",
    yes: "Override it",
    danger: true,
  });
}

/** When entries count as dead, how often passes run, and on which store. */
function habits(status) {
  const after = status.grace_ms ? `deleted after ${roundSpan(status.grace_ms)} alone` : `dead after ${roundSpan(status.threshold_ms)} of silence`;
  return `${after} · a pass every ${roundSpan(status.every_ms)} · store ${status.store_name}`;
}

function leader(status) {
  if (status.leads === null) return "any replica sweeps";
  if (status.leads) return `${status.leader || "this process"} leads (this process)`;
  return status.leader ? `${status.leader} leads` : "nobody leads";
}

function lastPass(status) {
  const pass = status.last_pass;
  if (!pass) return "No pass yet.";
  const end = pass.stopped === "done" ? "" : `, stopped: ${stopped(pass.stopped)}`;
  return `Last pass ${ago(pass.started_ms)}: ${did(pass)}${end}${pass.detail && pass.stopped === "error" ? " (" + pass.detail + ")" : ""}`;
}

/** The state of a system: its level (which is its colour) and a word for it. */
export function condition(status) {
  if (status.error) return ["bad", "store away"];
  if (status.brake?.state === "held") return ["warn", "held"];
  if (status.last_pass?.stopped === "error") return ["bad", "pass failed"];
  if (status.brake?.state === "opening") return ["warn", "opening"];
  return ["good", "well"];
}

/** The parts that the card and the page of a system share. */
function shared(kind, name, refresh) {
  const parts = {
    chip: el("span", { class: "chip" }),
    figures: figureList(),
    why: el("p", { class: "why", role: "alert", hidden: true }),
    brake: brakeOf(kind, name, refresh),
    last: el("p", { class: "last" }),
    habits: el("p", { class: "soft" }),
    chart: lagChart(),
  };
  const update = (status, history) => {
    const [state, word] = condition(status);
    say(parts.chip, word);
    mark(parts.chip, state);
    parts.why.hidden = !status.error;
    say(parts.why, status.error ?? "");
    parts.figures.update(status);
    parts.brake.update(status);
    say(parts.last, lastPass(status));
    say(parts.habits, leader(status) + " · " + habits(status));
    if (history) parts.chart.update(history, status.lag, Boolean(status.error));
  };
  return { parts, update };
}

/** The card of one system in the overview. */
export function card(kind, name, refresh) {
  const { parts, update } = shared(kind, name, refresh);
  const title = el("h3", null, el("a", { href: `#/system/${kind}/${name}`, text: `${kind}/${name}` }));
  const root = el("article", { class: "card", "data-system": `${kind}/${name}` },
    el("header", null, title, parts.chip), parts.why, parts.figures.root, parts.chart.root, parts.brake.root, parts.last, parts.habits);
  return { root, update };
}

/** The page with all details of one system. */
export function systemView(kind, name, { state, feed, refresh, asked }) {
  const known = state.systems.some((system) => system.kind === kind && system.system === name);
  if (!known) return { root: el("p", { class: "empty", text: `There is no system ${kind}/${name}.` }), update() {} };
  const { parts, update } = shared(kind, name, refresh);
  const [reclaims, passes] = [reclaimChart(), passList()];
  const live = liveReceipts(feed, `${kind}/${name}`);
  const letters = ofKind(kind).dead_letters ? new Letters(kind, name).root : null;
  const root = el("div", { class: "system", "data-system": `${kind}/${name}` },
    el("header", { class: "title" }, el("h1", { text: `${kind}/${name}` }), parts.chip),
    parts.why, parts.figures.root, parts.brake.root, parts.last, parts.habits,
    el("div", { class: "charts" }, parts.chart.root, reclaims.root),
    el("div", { class: "pair" }, explainer(kind, name, asked.explain), passNow(kind, name)), letters, passes.root, live.root);
  return {
    root,
    leave: live.leave,
    update(next) {
      const mine = (each) => each.kind === kind && each.system === name;
      const [status, history] = [next.systems.find(mine), next.histories.find(mine)];
      if (status) update(status, history);
      if (history) reclaims.update(history);
      if (history) passes.update(history.passes);
    },
  };
}
