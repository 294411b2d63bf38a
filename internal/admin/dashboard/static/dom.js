// Elements are made here, from values and never from markup: whatever a name contains is text.

// h makes an element. Functions among the properties are event handlers, false and null leave a property out.
export function h(tag, properties, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (typeof value === "function") e.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}

// Characters that change how others are shown or are not shown themselves.
const odd = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cs}]/u;
const longest = 140;

// sentence is how long a text may be that is not a name: what was found, what to do, a line of the log.
export const sentence = 1500;

function escaped(c) {
  const known = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
  return known[c] ?? `\\u{${c.codePointAt(0).toString(16)}}`;
}

// plain is a name as a text without markup, for tool tips and labels.
export const plain = (text) => Array.from(text).map((c) => (odd.test(c) ? escaped(c) : c)).join("");

// name shows a name that somebody else chose: control characters as escapes, the middle of a very long one left out, and
// apart from the direction of the text around it.
export function name(text, most = longest) {
  const letters = Array.from(text);
  const shown = letters.length <= most ? letters : [...letters.slice(0, most - 40), null, ...letters.slice(-39)];
  const e = h("bdi", { class: "name", title: shown === letters ? null : plain(text) });
  let run = "";
  const flush = () => {
    if (run) e.append(run);
    run = "";
  };
  for (const c of shown) {
    if (c === null) run += " … ";
    else if (odd.test(c)) {
      flush();
      e.append(h("span", { class: "odd" }, escaped(c)));
    } else run += c;
  }
  flush();
  return e;
}

// value shows a number of the API. data-from says which one, for tests and for whoever looks at the page's source.
export function value(number, text, from) {
  return h("data", { value: number ?? "", "data-from": from }, text);
}

// bar shows a share from 0 to 1. The number stands beside it, so that it says nothing of its own to screen readers.
export function bar(share, level) {
  const filled = h("span", {});
  filled.style.width = `${100 * Math.min(1, Math.max(0, share || 0))}%`;
  return h("span", { class: "bar", "data-level": level, "aria-hidden": "true" }, filled);
}

// table makes a table of columns {title, number} and rows of cells. On a phone each row is a block, so roles are named.
export function table(caption, columns, rows) {
  return h("table", { role: "table" },
    h("caption", { class: "hidden" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((c) => h("th", { role: "columnheader", scope: "col", class: c.number ? "number" : null }, c.title)))),
    h("tbody", { role: "rowgroup" }, rows.map((cells) => h("tr", { role: "row" }, cells.map((cell, i) =>
      i === 0 ? h("th", { role: "rowheader", scope: "row" }, cell) :
        h("td", { role: "cell", class: columns[i].number ? "number" : null, "data-title": columns[i].title }, h("span", {}, cell)))))));
}

// details can be opened; what is open stays open when its part is drawn anew, by its key.
export function details(key, summary, ...children) {
  return h("details", { "data-key": key }, h("summary", {}, summary), ...children);
}

// say is a sentence in place of a part that is absent or empty.
export const say = (...children) => h("p", { class: "empty" }, ...children);

// draw replaces what a part shows. What was open stays open, and the focus stays where it was.
export function draw(part, ...children) {
  const open = new Set(Array.from(part.querySelectorAll("details[open][data-key]"), (d) => d.dataset.key));
  const focused = part.contains(document.activeElement) ? Array.from(part.querySelectorAll("summary, [tabindex]")).indexOf(document.activeElement) : -1;
  part.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  for (const d of part.querySelectorAll("details[data-key]")) d.open = open.has(d.dataset.key);
  if (focused >= 0) part.querySelectorAll("summary, [tabindex]")[focused]?.focus({ preventScroll: true });
}
