// Formats numbers and times for people.

import { GENERAL, KINDS } from "./kinds.js";

let skew_ms = 0;

/** What time it is at the daemon: ages are told by its clock, not by this browser's. */
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

/** A span that somebody has configured: no more digits than were given. */
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

/** `one` thing or so many `many`. */
export function some(number, one, many) {
  return count(number) + " " + (Number(number) === 1 ? one : many ?? one + "s");
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString(undefined, { hour12: false });
}

export function moment(ms) {
  return new Date(ms).toLocaleString(undefined, { hour12: false });
}

/** What is said of a kind of system: `entries`, `owners`, `promise`, `dead_letters`. */
export function ofKind(kind) {
  return KINDS[kind] ?? GENERAL;
}

/** Why something was reclaimed. */
export const REASONS = {
  owner_dead: "owner dead",
  owner_retired: "owner left",
  orphaned: "orphaned",
  never_connected: "never connected",
  lease_expired: "lease expired",
  decision_expired: "decision expired",
  heartbeat_stale: "fell silent",
};

export function reason(word) {
  return REASONS[word] ?? word.replaceAll("_", " ");
}

/** Why a pass stopped. */
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

/** `KIND/NAME` of a receipt's id, and its number there. */
export function place(id) {
  const [, kind, name, seq] = id.match(/^([a-z]+)-(.+)-(\d+)$/) ?? [null, "", id, "0"];
  return { system: kind + "/" + name, kind, name, seq: Number(seq) };
}

/** Who held it, and in which life; nobody where it is its own owner, as a provider is. */
export function holder(record) {
  if (record.owner === record.key) return "";
  return record.incarnation ? record.owner + " #" + record.incarnation : record.owner;
}
