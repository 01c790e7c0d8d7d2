// Buttons that change something. They are disabled for users who may only read and while the action
// runs; the outcome is shown as a message.

import { READ_ONLY, mayAct } from "./api.js";
import { el } from "./elements.js";

let timer = null;

/** Shows the outcome of an action as a message that disappears after a while. */
export function tell(text, state = "good") {
  const said = document.getElementById("said");
  said.textContent = text;
  said.dataset.state = state;
  clearTimeout(timer);
  timer = setTimeout(() => { said.textContent = ""; }, 12_000);
}

/** A button that changes nothing on the daemon. `work` may return a message about its outcome. */
export function looking(text, work, attributes) {
  const button = el("button", { type: "button", text, ...attributes });
  button.addEventListener("click", () => perform(button, work));
  return button;
}

/** A button that changes something; disabled for users without the scope `act`. */
export function action(text, work, attributes) {
  const button = looking(text, work, attributes);
  if (!mayAct()) {
    button.disabled = true;
    button.title = READ_ONLY;
  }
  return button;
}

async function perform(button, work) {
  if (button.getAttribute("aria-busy")) return;
  button.setAttribute("aria-busy", "true");
  try {
    const came = await work(button);
    if (came) tell(came);
  } catch (error) {
    tell((error.title ? error.title + ": " : "") + error.message, "bad");
  } finally {
    button.removeAttribute("aria-busy");
  }
}
