// The details of one receipt: what was removed, why, and a button that restores it.

import { action, tell } from "./actions.js";
import { ask, path } from "./api.js";
import { confirm, facts, open } from "./dialog.js";
import { el } from "./elements.js";
import { holder, moment, ofKind, place, reason, span } from "./words.js";

/** Says what would be restored, and where, before the user confirms. */
function promise(receipt) {
  const { kind, system } = place(receipt.id);
  const places = { key: `“${receipt.key}”`, system, owner: receipt.owner };
  return ofKind(kind).promise.replace(/\{(key|system|owner)\}/g, (_, place) => places[place]);
}

async function putBack(receipt, done) {
  const agreed = await confirm({
    title: "Put it back?",
    lines: [promise(receipt), "If its place has been taken since, nothing is changed, and the answer says why."],
    yes: "Put it back",
  });
  if (!agreed) return null;
  const back = await ask(path("receipts", receipt.id, "restore"), { method: "POST" });
  const whose = back.incarnation ? `, held by ${back.owner} #${back.incarnation}` : "";
  tell(`${back.key} is back${whose}.`);
  done();
  return null;
}

function evidence(receipt) {
  const { deadline_ms, judged_ms, late_ms, clock } = receipt.evidence;
  return `its time ran out at ${moment(deadline_ms)}, judged at ${moment(judged_ms)}: ${span(late_ms)} late by the ${clock} clock`;
}

/** Shows one receipt in a dialog; `changed` is called after it was restored. */
export async function show(id, changed) {
  const receipt = await ask(path("receipts", id));
  const { kind, name, system } = place(id);
  const explain = `#/system/${kind}/${name}?explain=${encodeURIComponent(receipt.key)}`;
  const close = el("button", { type: "button", text: "Close", autofocus: true });
  const back = action("Restore…", () => putBack(receipt, () => { dialog.close(); changed?.(); }), { "data-action": "restore" });
  if (receipt.restored_ms) back.disabled = true;
  const dialog = open("Receipt " + id, { class: "details", "data-receipt": id },
    facts([
      ["system", system],
      ["key", el("a", { href: explain, text: receipt.key })],
      ["owner", holder(receipt)],
      ["why", reason(receipt.reason)],
      ["evidence", evidence(receipt)],
      ["reclaimed", moment(receipt.at_ms)],
      ["by", receipt.sweeper],
      ["put back", receipt.restored_ms ? moment(receipt.restored_ms) : ""],
    ]),
    el("details", null, el("summary", { text: "what was removed" }), el("pre", { text: JSON.stringify(receipt.removed, null, 2) })),
    el("p", { class: "buttons" }, close, back));
  close.addEventListener("click", () => dialog.close());
  dialog.querySelector("a").addEventListener("click", () => dialog.close());
}
