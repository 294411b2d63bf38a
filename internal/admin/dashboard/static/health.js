// The top of the page: is it healthy, and if not, what is wrong and what to do.
import { h, name, draw, sentence } from "./dom.js";
import * as format from "./format.js";

const verdict = document.getElementById("verdict");
const reasons = document.getElementById("reasons");
const banner = document.getElementById("health");

let shown = "";

// put changes the banner only if it says something else, so that screen readers are not told the same again.
function put(level, headline, items) {
  const text = JSON.stringify([level, headline, items.map((i) => i.textContent)]);
  if (text === shown) return;
  shown = text;
  banner.dataset.level = level;
  verdict.textContent = headline;
  draw(reasons, items);
}

const reason = (what, found, fix) => h("li", {}, what ? [h("b", {}, name(what)), ": "] : null, name(found, sentence), fix ? [h("span", { class: "fix" }, " What to do: "), name(fix, sentence)] : null);

export function showStatus(s) {
  const failed = s.checks.filter((c) => !c.ready);
  const top = s.findings?.top ?? [];
  const items = [
    ...failed.map((c) => reason(c.name, c.error)),
    ...(s.findings?.error ? [reason("the doctor", `could not look: ${s.findings.error}`)] : []),
    ...top.map((f) => reason("", f.found, f.fix)),
  ];
  const more = (s.findings?.warnings ?? 0) + (s.findings?.failures ?? 0) - top.length;
  if (more > 0) items.push(h("li", {}, h("a", { href: "#findings" }, `${format.plural(more, "more finding")} below`)));
  if (s.health === "unhealthy") put("bad", failed.length === 1 ? `Not healthy: ${failed[0].name}` : "Not healthy", items);
  else if (s.health === "warnings") put("warning", "It serves, but something needs your attention", items);
  else put("good", "Healthy: every check passes", items);
}

// showLost says that the daemon does not answer, since when, and what to do.
export function showLost(lastSeconds, why) {
  put("bad", lastSeconds === null ? "The daemon is not reachable" : `Not reachable since ${format.moment(lastSeconds)}`, [
    h("li", {}, `${why}. `, lastSeconds === null ? "" : "The numbers below are old. ", "Is it running? On its host: ", h("code", {}, "kv3fs status"), ", or ", h("code", {}, "systemctl status kv3fs"), ". The page goes on trying."),
  ]);
}

export function showFailed(lastSeconds, e) {
  put("bad", lastSeconds === null ? "The daemon answers with an error" : `No good answer since ${format.moment(lastSeconds)}`, [reason("", e.message, e.cure)]);
}
