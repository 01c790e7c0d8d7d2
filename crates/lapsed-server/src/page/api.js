// The client of the daemon's HTTP API: sends the token, knows its scopes, and turns problems into
// messages.

const KEY = "lapsed-token";

/** An answer of the daemon that is an error (a problem). */
export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail ?? `the daemon answers ${status}`);
    this.status = status;
    this.title = body?.title ?? "";
    this.type = body?.type ?? "";
  }
}

/** The daemon did not answer at all. */
export class Silence extends Error {}

let who = null;

export function token() {
  return sessionStorage.getItem(KEY);
}

export function setToken(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

export function headers(more) {
  const bearer = token();
  return bearer ? { ...more, authorization: "Bearer " + bearer } : { ...more };
}

/** Sends a request and returns the JSON of the answer. */
export async function ask(path, { method = "GET", body, signal } = {}) {
  const json = body === undefined ? {} : { "content-type": "application/json" };
  let answer;
  try {
    answer = await fetch(path, { method, headers: headers(json), body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Silence("no answer");
  }
  const said = await answer.json().catch(() => null);
  if (!answer.ok) throw new Problem(answer.status, said);
  return said;
}

/** The identity and the scopes of our token. An older daemon, which does not have this route, is taken to allow everything. */
export async function whoami() {
  try {
    who = await ask("/v1/whoami");
  } catch (error) {
    if (error.status !== 404) throw error;
    await ask("/v1/stores");
    who = { name: "", scopes: ["read", "write", "act"], open: !token() };
  }
  return who;
}

/** Whether our token has the scope `act`: hold a brake, run a pass, restore an entry. */
export function mayAct() {
  return who?.scopes?.includes("act") ?? false;
}

export const READ_ONLY = "this token may read, not act";

/** A path of the API below `/v1/`, with each part percent-encoded. */
export function path(...parts) {
  return "/v1/" + parts.map(encodeURIComponent).join("/");
}

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? "?" + new URLSearchParams(given) : "";
}
