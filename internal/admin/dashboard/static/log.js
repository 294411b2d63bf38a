// The log's tail: follows the end as long as the end is what is seen.
import { h, name, draw, say, plain, sentence } from "./dom.js";
import * as format from "./format.js";

const kept = 500;
const order = ["debug", "info", "warn", "error"];
const part = document.querySelector('#log [data-part="body"]');
const level = document.getElementById("log-level");
const search = document.getElementById("log-search");
const list = h("ol", { class: "log", tabindex: "0", "aria-label": "Log lines, the latest last" });

let lines = [];
let next = 0;

export const logPath = () => `log?after=${next}&most=${kept}`;

const whole = (l) => `${l.level} ${plain(l.message)} ${l.attributes.map((a) => `${plain(a.key)}=${plain(a.value)}`).join(" ")}`;

function drawLines() {
  const least = order.indexOf(level.value), words = search.value.trim().toLowerCase();
  const shown = lines.filter((l) => order.indexOf(l.level.toLowerCase().replace(/[+-]\d+$/, "")) >= least && (words === "" || whole(l).toLowerCase().includes(words)));
  if (shown.length === 0) return draw(part, say(lines.length === 0 ? "No line yet." : "No line matches."));
  const atEnd = !list.isConnected || list.scrollHeight - list.scrollTop - list.clientHeight < 30;
  const top = list.scrollTop;
  list.replaceChildren(...shown.map((l) => h("li", { "data-level": l.level.toLowerCase() },
    h("time", { datetime: l.time, title: l.time }, format.moment(Date.parse(l.time) / 1000)), " ", h("b", {}, l.level.toUpperCase()), " ", name(l.message, sentence),
    l.attributes.map((a) => [" ", h("span", { class: "attribute" }, h("i", {}, name(a.key), "="), name(a.value, sentence))]))));
  if (!list.isConnected) draw(part, list);
  list.scrollTop = atEnd ? list.scrollHeight : top;
}

// restartLog is for a daemon that was started again: its lines are counted from the beginning.
export function restartLog() {
  lines = [];
  next = 0;
}

export function showLog(a, asked) {
  if (a.lines.length === 0 && lines.length > 0) return;
  // An answer to a question of before a restart does not belong here.
  if (asked !== logPath()) return;
  lines = [...lines, ...a.lines].slice(-kept);
  next = a.next;
  drawLines();
}

level.addEventListener("change", drawLines);
search.addEventListener("input", drawLines);
