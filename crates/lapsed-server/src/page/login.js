// Asks for the token if the daemon requires one. The token is kept in this tab only, and is gone
// when the tab is closed.

import { setToken, whoami } from "./api.js";
import { el } from "./elements.js";

/** Asks for a token until the daemon accepts one; resolves with its identity and scopes. */
export function login(main, words) {
  return new Promise((done) => {
    const said = el("p", { class: "refused", role: "alert", id: "login-said", text: words ?? "" });
    const input = el("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "login-said" });
    const button = el("button", { class: "primary", text: "Log in" });
    const form = el("form", { class: "login", id: "login" },
      el("h1", { text: "This daemon wants a token" }),
      el("p", { class: "soft", text: "One of those in [server] of its configuration. It is kept in this tab only." }),
      el("label", { for: "token", text: "Token" }), input, button, said);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      button.disabled = true;
      const who = await attempt(input.value.trim(), said);
      button.disabled = false;
      if (who) done(who);
      else input.select();
    });
    main.replaceChildren(form);
    input.focus();
  });
}

async function attempt(text, said) {
  said.textContent = "";
  setToken(text);
  try {
    return await whoami();
  } catch (error) {
    setToken("");
    said.textContent = error.status === 401 ? "This token was refused: " + error.message : "Could not log in: " + error.message;
    return null;
  }
}
