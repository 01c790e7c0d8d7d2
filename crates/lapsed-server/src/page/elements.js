// Creates DOM elements. Text from outside is only ever inserted as text, never as markup.

/** Creates an HTML element. Of its attributes, `on…` are event listeners and `text` is its text. */
export function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Creates an SVG element, like `el` for HTML. */
export function svg(name, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "text") node.textContent = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Sets the text of a node only if it differs, so that a selection is kept and a screen reader does not repeat it. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets the state of a node, from which its colour follows. */
export function mark(node, state) {
  if (node.dataset.state !== state) node.dataset.state = state;
}

/** A table that becomes a list of cards on a narrow screen. */
export function table(caption, heads, attributes) {
  const body = el("tbody");
  const row = el("tr", null, heads.map((head) =>
    el("th", { scope: "col", class: head.number ? "number" : null }, head.hidden ? el("span", { class: "unseen", text: head.name }) : head.name)));
  const root = el("table", attributes, el("caption", { class: "unseen", text: caption }), el("thead", null, row), body);
  return { root, body };
}

/** A table cell; `label` is shown beside the value on a narrow screen, where there are no column headings. */
export function cell(label, content, attributes) {
  return el("td", { "data-label": label, ...attributes }, content);
}

/** A section with a heading and its content. */
export function section(title, attributes, ...children) {
  const id = "h-" + title.toLowerCase().replace(/[^a-z]+/g, "-");
  return el("section", { "aria-labelledby": id, ...attributes }, el("h2", { id, text: title }), ...children);
}
