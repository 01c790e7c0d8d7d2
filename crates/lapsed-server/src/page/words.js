// Formats numbers and times for people.

import { GENERAL, KINDS } from "./kinds.js";

let skew_ms = 0;

/** The current time of the daemon: ages are computed by its clock, not by this browser's. */
export function setNow(now_ms) {
  skew_ms = now_ms - Date.now();
}

export function now() {
  return Date.now() + skew_ms;
}

export function span(ms) {
  if (ms < 1_000) return Math.round(ms) + " ms";
  if (ms < 120_000) return (ms / 1_000).toFixed(1) + " s";
  if (ms < 7_200_000) return Math.round(ms / 60_000) + " min";
  if (ms < 172_800_000) return (ms / 3_600_000).toFixed(1) + " h";
  return Math.round(ms / 86_400_000) + " days";
}

/** A configured duration, with no more digits than were configured. */
export function roundSpan(ms) {
  for (const [unit, name] of [[86_400_000, "day"], [3_600_000, "h"], [60_000, "min"], [1_000, "s"]]) {
    if (ms >= unit && ms % unit === 0) return ms / unit + " " + name + (name === "day" && ms > unit ? "s" : "");
  }
  return span(ms);
}

export function ago(ms) {
  const past = now() - ms;
  return past < 1_000 ? "just now" : past < 120_000 ? Math.round(past / 1_000) + " s ago" : span(past) + " ago";
}

export function count(number) {
  return Number(number).toLocaleString("en");
}

/** A count with its noun: `one` in the singular, `many` in the plural. */
export function some(number, one, many) {
  return count(number) + " " + (Number(number) === 1 ? one : many ?? one + "s");
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString(undefined, { hour12: false });
}

export function moment(ms) {
  return new Date(ms).toLocaleString(undefined, { hour12: false });
}

/** The texts of a kind of system: `entries`, `owners`, `promise`, `dead_letters`. */
export function ofKind(kind) {
  return KINDS[kind] ?? GENERAL;
}

/** The reason of a reclaim in words. */
export const REASONS = {
  owner_dead: "owner dead",
  owner_retired: "owner left",
  orphaned: "orphaned",
  never_connected: "never connected",
  lease_expired: "lease expired",
  decision_expired: "decision expired",
  heartbeat_stale: "no heartbeat",
};

export function reason(word) {
  return REASONS[word] ?? word.replaceAll("_", " ");
}

/** The reason why a pass stopped, in words. */
const STOPPED = {
  done: "done",
  ops: "as many as one pass may",
  runtime: "out of time",
  activity: "somebody used it",
  brake: "held by the brake",
  error: "failed",
};

export function stopped(word) {
  return STOPPED[word] ?? word;
}

/** The system (`KIND/NAME`) and the number that are in the id of a receipt. */
export function place(id) {
  const [, kind, name, seq] = id.match(/^([a-z]+)-(.+)-(\d+)$/) ?? [null, "", id, "0"];
  return { system: kind + "/" + name, kind, name, seq: Number(seq) };
}

/** The owner and the incarnation that held an entry; empty if the entry is its own owner, as a provider is. */
export function holder(record) {
  if (record.owner === record.key) return "";
  return record.incarnation ? record.owner + " #" + record.incarnation : record.owner;
}
