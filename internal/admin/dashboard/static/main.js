// Asks the daemon for each part, says how fresh what is shown is, and has the page's switches.
import { Poll, Failed, hasToken, setToken } from "./api.js";
import { History } from "./history.js";
import { redrawAll } from "./chart.js";
import { showStatus, showLost, showFailed } from "./health.js";
import { showTiles } from "./tiles.js";
import { showHistory, showHits, showCurve, showUsage, showKeeper, showClients, showPages, showHosts, showFindings } from "./panels.js";
import { logPath, showLog, restartLog } from "./log.js";
import { h, draw, name, plain, sentence } from "./dom.js";
import * as format from "./format.js";

const id = (name) => document.getElementById(name);
const unixNow = () => Date.now() / 1000;

let status = null;
let recent = null; // the history of the last ten minutes
let lastGood = null; // when the status was last answered
let paused = false;

// Freshness: what is old is marked, with its time.

const shownAt = new Map(); // by panel

function fresh(panel) {
  shownAt.set(panel, unixNow());
  delete id(panel).dataset.old;
  id(panel).querySelector("h2 .old")?.remove();
}

function old(panel) {
  const at = shownAt.get(panel);
  if (!at || id(panel).dataset.old !== undefined) return;
  id(panel).dataset.old = "";
  id(panel).querySelector("h2").append(h("span", { class: "old" }, `old, from ${format.moment(at)}`));
}

function sayLive(text, level) {
  id("live").dataset.level = level;
  if (id("live").textContent !== text) id("live").textContent = text;
}

// ask makes the poll of one panel. What it shows stays if an answer fails, and is marked as old.
function ask(panel, periodSeconds, path, show) {
  return new Poll(path, periodSeconds, (answer, asked) => {
    show(answer, asked);
    id(panel).querySelector(":scope > .failed")?.remove();
    fresh(panel);
  }, (e) => {
    old(panel);
    if (!(e instanceof Failed) || e.status === 401) return;
    const text = h("p", { class: "failed wrong" }, "This part cannot be shown: ", name(e.message, sentence), e.cure ? [". What to do: ", name(e.cure, sentence)] : null);
    id(panel).querySelector(":scope > .failed")?.remove();
    id(panel).querySelector(":scope > .what").after(text);
  });
}

function showState(s) {
  const again = lastGood === null || document.documentElement.dataset.lost !== undefined;
  const restarted = status !== null && status.started !== s.started;
  if (restarted) restartLog();
  status = s;
  lastGood = unixNow();
  delete document.documentElement.dataset.lost;
  draw(id("host"), name(s.host));
  draw(id("serving"), "serves ", name(s.data), " at ", name(s.mount), " · version ", name(s.version), ` · up ${format.age(s.uptime_seconds)}`);
  document.title = `kv3fs on ${plain(s.host)}`;
  showStatus(s);
  showTiles(status, recent);
  sayLive(paused ? "paused" : "live", paused ? "warning" : "good");
  // After a start (of the page or of the daemon) or an outage, every panel is asked for at once.
  if ((again || restarted) && !paused) for (const p of polls.slice(1)) p.go();
}

function lost(e) {
  if (e instanceof Failed && e.status === 401) return login(hasToken() ? "The token is wrong." : "");
  document.documentElement.dataset.lost = "";
  if (e instanceof Failed) showFailed(lastGood, e);
  else showLost(lastGood, e.message[0].toUpperCase() + e.message.slice(1));
  sayLive("not live", "bad");
  for (const panel of shownAt.keys()) old(panel);
}

const charts = id("window");
const minutes = () => (recent?.measured > 0 ? `history?window=10m&after=${recent.measured}` : "history?window=10m");
const day = ask("traffic", 60, () => "history?window=24h", (a) => { if (charts.value === "24h") showHistory(new History(a)); });
const polls = [
  new Poll(() => "status", 2, showState, lost),
  ask("traffic", 2, minutes, (a) => {
    recent = new History(a, recent);
    showTiles(status, recent);
    if (charts.value === "10m") showHistory(recent);
  }),
  ask("hits", 10, () => "hits", showHits),
  ask("curve", 30, () => "curve", showCurve),
  ask("disk", 30, () => "usage", showUsage),
  ask("evictions", 10, () => "keeper", showKeeper),
  ask("clients", 5, () => "clients", showClients),
  ask("pages", 10, () => "pages", showPages),
  ask("hosts", 10, () => "hosts", showHosts),
  ask("findings", 30, () => "findings", showFindings),
  ask("log", 2, logPath, showLog),
];

// The token.

function login(text) {
  stop();
  sayLive("needs a token", "warning");
  id("login-wrong").textContent = text;
  if (!id("login").open) id("login").showModal();
  id("token").focus();
}

id("login").addEventListener("cancel", (e) => e.preventDefault()); // there is nothing to see without
id("login-form").addEventListener("submit", (e) => {
  e.preventDefault();
  setToken(id("token").value.trim());
  id("token").value = "";
  id("login").close();
  go();
});

// Polling: not while the page is hidden, paused or waits for the token.

function stop() {
  for (const p of [...polls, day]) p.stop();
}

function go() {
  if (paused || document.hidden || id("login").open) return;
  // The status first: it says whether a token is needed. The others follow its answer, or come as their periods say.
  polls[0].go();
  if (lastGood !== null) for (const p of polls.slice(1)) p.go();
  if (charts.value === "24h") day.go();
}

document.addEventListener("visibilitychange", () => (document.hidden ? stop() : go()));

id("pause").addEventListener("click", () => {
  paused = !paused;
  id("pause").setAttribute("aria-pressed", String(paused));
  id("pause").textContent = paused ? "Go on" : "Pause";
  if (paused) {
    stop();
    sayLive(lastGood === null ? "paused" : `paused at ${format.clock(unixNow())}`, "warning");
  } else go();
});

charts.addEventListener("change", () => {
  if (charts.value === "24h") return day.go();
  day.stop();
  if (recent) showHistory(recent);
});

// The theme.

const theme = id("theme");
theme.value = document.documentElement.dataset.theme ?? "";
theme.addEventListener("change", () => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
  try {
    if (theme.value) localStorage.setItem("kv3fs.theme", theme.value);
    else localStorage.removeItem("kv3fs.theme");
  } catch {
    // Storage is off: the choice holds until the page is loaded again.
  }
  redrawAll();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

go();
