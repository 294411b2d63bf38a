// A treemap of engine, model and directory: nested rectangles whose areas are bytes.
import { h, name, plain } from "./dom.js";
import * as format from "./format.js";

// squarify divides a rectangle among items, largest first, into areas as square as possible (Bruls, Huizing and van Wijk 2000).
export function squarify(items, x, y, w, height) {
  const placed = [];
  let rest = items.filter((i) => i.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  let sum = rest.reduce((s, i) => s + i.bytes, 0);
  while (rest.length > 0 && w > 0 && height > 0) {
    const side = Math.min(w, height), scale = (w * height) / sum;
    let row = [], area = 0, worst = Infinity;
    for (const item of rest) {
      const next = area + item.bytes * scale;
      const largest = rest[0].bytes * scale, smallest = item.bytes * scale;
      const shape = Math.max((side * side * largest) / (next * next), (next * next) / (side * side * smallest));
      if (shape > worst) break;
      row.push(item);
      area = next;
      worst = shape;
    }
    const thick = area / side;
    let along = 0;
    for (const item of row) {
      const length = (item.bytes * scale) / thick;
      placed.push(w >= height ? { item, x, y: y + along, w: thick, h: length } : { item, x: x + along, y, w: length, h: thick });
      along += length;
    }
    if (w >= height) {
      x += thick;
      w -= thick;
    } else {
      y += thick;
      height -= thick;
    }
    sum -= row.reduce((s, i) => s + i.bytes, 0);
    rest = rest.slice(row.length);
  }
  return placed;
}

const colors = 6;
const heading = 22;

function box(place, tag, properties) {
  const e = h(tag, properties);
  Object.assign(e.style, { left: `${place.x}px`, top: `${place.y}px`, width: `${Math.max(0, place.w)}px`, height: `${Math.max(0, place.h)}px` });
  return e;
}

// treemap draws engines [{name, bytes, models: [{name, bytes, directories: [{name, bytes}]}]}] into a rectangle.
export function treemap(engines, width, height) {
  const map = h("div", { class: "treemap" });
  map.style.height = `${height}px`;
  squarify(engines, 0, 0, width, height).forEach((place, i) => {
    const engine = place.item;
    const color = engine.unknown ? "unknown" : String(i % colors);
    const area = box({ x: place.x + 1, y: place.y + 1, w: place.w - 2, h: place.h - 2 }, "div", { class: "engine", "data-color": color });
    const room = place.w > 70 && place.h > heading + 14;
    if (room) area.append(h("div", { class: "label" }, name(engine.name), " ", h("span", {}, format.bytes(engine.bytes))));
    const top = room ? heading : 0;
    for (const m of squarify(engine.models, 0, top, place.w - 2, place.h - 2 - top)) {
      const model = box({ x: m.x, y: m.y, w: m.w - 1, h: m.h - 1 }, "div", { class: "model", title: `${plain(engine.name)} › ${plain(m.item.name)}: ${format.bytes(m.item.bytes)}` });
      const parts = squarify(m.item.directories, 0, 0, m.w - 1, m.h - 1);
      parts.forEach((d, k) => {
        const directory = box({ x: d.x, y: d.y, w: d.w - (parts.length > 1 ? 1 : 0), h: d.h - (parts.length > 1 ? 1 : 0) }, "div",
          { class: "directory", "data-shade": k % 2, title: `${plain(engine.name)} › ${plain(m.item.name)} › ${plain(d.item.name)}: ${format.bytes(d.item.bytes)}` });
        if (d.w > 74 && d.h > 52) {
          const lines = Math.max(1, Math.floor((d.h - 12) / 17));
          directory.append(h("div", { class: "label" },
            h("b", {}, name(m.item.name)),
            lines > 2 && d.item.name ? h("span", {}, name(d.item.name)) : null,
            lines > 1 ? h("span", {}, format.bytes(d.item.bytes)) : null));
        }
        model.append(directory);
      });
      area.append(model);
    }
    map.append(area);
  });
  return map;
}
