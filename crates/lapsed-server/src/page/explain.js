// The view that explains why one key is, or is not, dead.

import { ask, path } from "./api.js";
import { el, section } from "./elements.js";

const STATES = { live: "good", active: "good", available: "good", queued: "good", free: "good", overdue: "warn", spared: "warn", grace: "warn", full: "warn", orphan: "warn", unknown: "soft" };

function verdict(said) {
  return el("div", { class: "verdict" },
    el("p", null, el("span", { class: "chip", "data-state": STATES[said.verdict] ?? "bad", text: said.verdict.replaceAll("_", " ") }), " ", el("code", { text: said.key })),
    el("ul", null, said.because.map((sentence) => el("li", { text: sentence }))),
    el("details", null, el("summary", { text: "the facts" }), el("pre", { text: JSON.stringify(said.facts, null, 2) })));
}

/** The form for a key and the explanation below it; `first` is a key to explain at once. */
export function explainer(kind, name, first) {
  const input = el("input", { id: "explain-key", name: "key", required: true, maxlength: 512, spellcheck: "false", autocomplete: "off", value: first ?? "" });
  const said = el("div", { "aria-live": "polite", id: "explained" });
  const form = el("form", { class: "line", id: "explain" }, el("label", { for: "explain-key", text: "Key or owner" }), input, el("button", { text: "Explain" }));
  const answer = async () => {
    const key = input.value.trim();
    if (!key) return;
    try {
      said.replaceChildren(verdict(await ask(path("explain", kind, name, key))));
    } catch (error) {
      said.replaceChildren(el("p", { class: "why", text: error.message }));
    }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); answer(); });
  if (first) answer();
  return section("Explain a key", { class: "explain" }, form, said);
}
