// The entry point of the dashboard: logs in, polls every few seconds, follows the receipts, and
// shows one view at a time.

import { READ_ONLY, Silence, ask, mayAct, setToken, token, whoami } from "./api.js";
import { el, mark, say } from "./elements.js";
import { lettersView } from "./letters.js";
import { login } from "./login.js";
import { Search, liveReceipts } from "./receipts.js";
import { storeTable } from "./stores.js";
import { Stream } from "./stream.js";
import { card, condition, systemView } from "./systems.js";
import { clock, moment, ofKind, setNow, some } from "./words.js";

const LOOK_MS = 2_000;
const LOOK_MS_HIDDEN = 15_000;

const $ = (id) => document.getElementById(id);
const state = { systems: [], histories: [], stores: [] };
let view = null;
let stream = null;
let timer = null;

/** The stream of receipts; the current view subscribes to it. */
const feed = {
  heard: new Set(),
  join(ears) {
    this.heard.add(ears);
    ears.fresh();
    return () => this.heard.delete(ears);
  },
};

const LINKS = { live: ["good", "live"], lost: ["bad", "connection lost, trying again"], wait: ["wait", "connecting"] };

function link(word) {
  const [colour, text] = LINKS[word];
  mark($("link"), colour);
  say($("link"), text);
}

function follow() {
  stream = new Stream({
    onState(word) {
      if (word === "refused") begin("The token is not taken any more.");
      else link(word);
      if (word === "live") look();
    },
    onFresh() {
      for (const ears of feed.heard) ears.fresh();
    },
    onMissing() {
      for (const ears of feed.heard) ears.missing();
    },
    onReceipt(data) {
      for (const ears of feed.heard) ears.receipt(data);
    },
  });
  stream.run();
}

/** Fetches the state of all systems once; stores and history only every second time. */
let looks = 0;
let silent = false;
async function look() {
  clearTimeout(timer);
  try {
    const all = looks++ % 2 === 0 || state.histories.length === 0;
    const [sweeps, histories, stores] = await Promise.all([ask("/v1/sweeps"), all ? ask("/v1/history") : null, all ? ask("/v1/stores") : null]);
    state.systems = sweeps.systems;
    if (histories) state.histories = histories.systems;
    if (stores) state.stores = stores.stores;
    if (histories?.systems.length) setNow(histories.systems[0].now_ms);
    say($("as-of"), "as of " + clock(Date.now()));
    $("to-letters").hidden = !state.systems.some((system) => ofKind(system.kind).dead_letters);
    view?.update(state);
    if (silent) stream?.renew();
    silent = false;
  } catch (error) {
    if (error.status === 401) return begin("The token is not taken any more.");
    silent = error instanceof Silence;
    if (silent) link("lost");
    say($("as-of"), "could not look: " + error.message);
  }
  clearTimeout(timer);
  timer = setTimeout(look, document.hidden ? LOOK_MS_HIDDEN : LOOK_MS);
}

/** The overview of all systems. */
function overview() {
  const said = el("p", { class: "headline", id: "headline", role: "status" });
  const grid = el("div", { class: "grid" });
  const stores = storeTable();
  const live = liveReceipts(feed);
  const cards = new Map();
  return {
    root: el("div", null, el("h1", { class: "unseen", text: "Systems" }), said, grid, stores.root, live.root),
    leave: live.leave,
    update({ systems, histories, stores: all }) {
      for (const status of systems) {
        const key = status.kind + "/" + status.system;
        if (!cards.has(key)) {
          cards.set(key, card(status.kind, status.system, look));
          grid.append(cards.get(key).root);
        }
        cards.get(key).update(status, histories.find((each) => each.kind === status.kind && each.system === status.system));
      }
      stores.update(all);
      headline(said, systems, all);
    },
  };
}

/** One sentence that says what needs attention, or that nothing does. */
function headline(said, systems, stores) {
  const of = (word) => systems.filter((status) => condition(status)[1] === word).length;
  const silent = stores.filter((store) => !store.answers).length;
  const wants = [
    silent ? some(silent, "store does not answer", "stores do not answer") : "",
    of("held") ? some(of("held"), "brake holds", "brakes hold") : "",
    of("pass failed") ? some(of("pass failed"), "last pass failed", "last passes failed") : "",
  ].filter(Boolean);
  say(said, wants.length ? wants.join(", ") + "." : `All is well: ${some(systems.length, "system")} on ${some(stores.length, "store")}.`);
  mark(said, wants.length ? "warn" : "good");
}

function route() {
  const [where, query = ""] = location.hash.slice(1).split("?");
  const asked = Object.fromEntries(new URLSearchParams(query));
  const [, name, kind, system] = where.split("/").map(decodeURIComponent);
  if (name === "receipts") return new Search(state, feed, asked);
  if (name === "letters") return lettersView(state, kind);
  if (name === "system") return systemView(kind, system, { state, feed, refresh: look, asked });
  return overview();
}

/** Shows the view that the address (its fragment) names. */
function turn() {
  if (location.hash && !location.hash.startsWith("#/")) return;
  view?.leave?.();
  view = route();
  $("main").replaceChildren(view.root);
  view.update(state);
  for (const anchor of $("views").querySelectorAll("a")) {
    const here = (location.hash || "#/").split("?")[0];
    if (anchor.getAttribute("href") === here) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
}

function introduce(who) {
  $("views").hidden = false;
  $("leave").hidden = !token();
  $("who").hidden = !who.name;
  say($("who"), who.name ?? "");
  $("who").title = who.expires_ms ? "valid until " + moment(who.expires_ms) : "";
  $("banner").hidden = mayAct();
  say($("banner"), mayAct() ? "" : `Looking only: ${READ_ONLY}. Buttons that change something are off.`);
}

/** Starts the dashboard: finds out what our token allows, then loads everything. */
async function begin(words) {
  clearTimeout(timer);
  stream?.stop();
  view?.leave?.();
  view = null;
  link("wait");
  let who = null;
  while (!who) who = await enter(words);
  introduce(who);
  await look();
  turn();
  follow();
}

async function enter(words) {
  try {
    if (words) throw Object.assign(new Error(words), { status: 401 });
    return await whoami();
  } catch (error) {
    if (error.status === 401) {
      setToken("");
      for (const id of ["views", "leave", "who", "banner"]) $(id).hidden = true;
      say($("link"), "");
      return login($("main"), words);
    }
    link("lost");
    await new Promise((go) => setTimeout(go, LOOK_MS));
    return null;
  }
}

addEventListener("hashchange", () => { if (view) { turn(); $("main").focus({ preventScroll: true }); scrollTo(0, 0); } });
document.addEventListener("visibilitychange", () => { if (!document.hidden && view) look(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
$("leave").addEventListener("click", () => { setToken(""); begin(); });
begin();
