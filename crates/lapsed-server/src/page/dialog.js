// Dialogs: a confirmation before an action, and the details of one object.

import { el } from "./elements.js";

/** Opens a dialog that is removed when it is closed; the focus then returns to the element that had it. */
export function open(title, attributes, ...children) {
  const heading = el("h2", { id: "dialog-title", text: title });
  const dialog = el("dialog", { "aria-labelledby": "dialog-title", ...attributes }, heading, ...children);
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before?.isConnected) before.focus();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Asks the user to confirm an action. The safe answer has the focus. With `ask` a text must be given, and is the answer. */
export function confirm({ title, lines, ask, yes, danger }) {
  return new Promise((answer) => {
    const agree = el("button", { type: "button", class: danger ? "danger" : "primary", text: yes, "data-answer": "yes" });
    const refuse = el("button", { type: "button", text: "Cancel", "data-answer": "no", autofocus: true });
    const text = lines.map((line) => el("p", { text: line }));
    const input = ask ? el("input", { type: "text", maxlength: 300, "data-answer": "text" }) : null;
    const given = () => (input ? input.value.trim() : true);
    const label = input ? el("p", null, el("label", null, ask + " ", input)) : null;
    const dialog = open(title, { class: "question" }, ...text, label, el("p", { class: "buttons" }, refuse, agree));
    let agreed = false;
    agree.disabled = !given();
    input?.addEventListener("input", () => { agree.disabled = !given(); });
    agree.addEventListener("click", () => { agreed = given(); dialog.close(); });
    refuse.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => answer(agreed));
  });
}

/** A list of names and values, one pair per line. */
export function facts(pairs) {
  const given = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return el("dl", { class: "facts" }, given.map(([name, value]) => el("div", null, el("dt", { text: name }), el("dd", null, value))));
}
