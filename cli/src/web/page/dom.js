// Makes elements, and brings what is shown in line with what should be shown.
// All data becomes text nodes, so no data can become markup.

export function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "css") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter(c => c !== null && c !== undefined && c !== false)
    .map(c => c instanceof Node ? c : String(c)));
  return element;
}

// What a person or the browser has changed stays as it is.
const THEIRS = new Set(["open"]);

function morph(old, wanted) {
  if (old.nodeType !== wanted.nodeType || old.nodeName !== wanted.nodeName
    || (old.dataset?.key ?? "") !== (wanted.dataset?.key ?? "")) {
    old.replaceWith(wanted);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && !THEIRS.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) === value || THEIRS.has(name)) continue;
    // The policy of the page forbids style attributes, but not styles.
    if (name === "style") old.style.cssText = wanted.style.cssText;
    else old.setAttribute(name, value);
  }
  if (!old.hasAttribute("data-own")) fill(old, [...wanted.childNodes]);
  // A field shows what the address says, except where somebody types.
  if (/^(INPUT|SELECT)$/.test(old.nodeName) && old.value !== wanted.value && (old.type !== "search" || old !== document.activeElement)) old.value = wanted.value;
}

// Gives an element these children. Elements with the same key stay the same elements, so that focus, selection and
// scroll positions stay.
export function fill(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
  let at = parent.firstChild;
  for (const node of wanted) {
    const same = node.dataset?.key && keyed.get(node.dataset.key);
    if (same) {
      // Another one with this key is another element: nothing that is wanted may be lost.
      keyed.delete(node.dataset.key);
      if (same === at) at = at.nextSibling;
      else parent.insertBefore(same, at);
      morph(same, node);
    } else if (at && !at.dataset?.key && !node.dataset?.key) {
      const next = at.nextSibling;
      morph(at, node);
      at = next;
    } else {
      parent.insertBefore(node, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// Says something to a screen reader.
export function say(text) {
  document.getElementById("said").textContent = text;
}
