// The numbers of now.
import { h, value, bar, draw } from "./dom.js";
import * as format from "./format.js";

const part = document.querySelector('[data-part="tiles"]');

const tile = (title, main, ...below) => h("div", { class: "tile" }, h("h3", {}, title), h("p", { class: "main" }, main), ...below.filter((b) => b !== null).map((b) => h("p", { class: "below" }, b)));

function flow(past, title, what) {
  const latest = (series) => past.latest(`ring_${what}${series}`);
  const from = (series) => `history:ring_${what}${series}`;
  const p99 = latest("_p99");
  if (latest("_bytes") === null && past.most(`ring_${what}_bytes`) === null) return tile(title, format.none, "not measured yet");
  return tile(title,
    value(latest("_bytes"), format.bytesPerSecond(latest("_bytes")), from("_bytes")),
    [value(latest("s"), format.perSecond(latest("s"), "requests"), from("s"))],
    p99 === null ? "no request just now" : ["p99 ", value(p99, format.seconds(p99), from("_p99"))],
    ["at most ", format.bytesPerSecond(past.most(`ring_${what}_bytes`))]);
}

function disk(s) {
  if (s.keeper) {
    const share = s.keeper.limit_bytes > 0 ? s.keeper.used_bytes / s.keeper.limit_bytes : null;
    return tile("Cache",
      [value(s.keeper.used_bytes, format.bytes(s.keeper.used_bytes), "status:/keeper/used_bytes")],
      share === null ? "without a limit" : ["of ", value(s.keeper.limit_bytes, format.bytes(s.keeper.limit_bytes), "status:/keeper/limit_bytes"), ", ", format.ratio(share), bar(share, share > 1 ? "bad" : "good")],
      s.keeper.scanned ? [value(s.keeper.files, format.count(s.keeper.files), "status:/keeper/files"), " files"] : "still counting the files",
      s.space ? [value(s.space.free_bytes, format.bytes(s.space.free_bytes), "status:/space/free_bytes"), " free on the disk"] : null);
  }
  if (!s.space) return tile("Disk", "?", "the file system does not answer");
  const used = s.space.size_bytes - s.space.free_bytes, share = s.space.size_bytes > 0 ? used / s.space.size_bytes : 0;
  return tile("Disk", format.ratio(share),
    [bar(share, share > 0.95 ? "bad" : "good"), value(s.space.free_bytes, format.bytes(s.space.free_bytes), "status:/space/free_bytes"), " free of ", value(s.space.size_bytes, format.bytes(s.space.size_bytes), "status:/space/size_bytes")],
    "no capacity set: nothing is evicted");
}

// showTiles shows what is known of the status and the last ten minutes.
export function showTiles(s, past) {
  const hit = past?.latest("hit_ratio") ?? null;
  const evicted = past?.latest("evicted_bytes") ?? null;
  draw(part,
    past ? [flow(past, "Reading", "read"), flow(past, "Writing", "write")] : null,
    past ? tile("Hit rate", value(hit, format.ratio(hit), "history:hit_ratio"), hit === null ? "no lookup in the last seconds" : "of the lookups just now") : null,
    s ? disk(s) : null,
    past && s?.keeper ? tile("Evicting", value(evicted, format.bytesPerSecond(evicted), "history:evicted_bytes"), [value(past.latest("evicted_files"), format.perSecond(past.latest("evicted_files"), "files"), "history:evicted_files")]) : null,
    s ? tile("Clients", value(s.clients.processes, format.count(s.clients.processes), "status:/clients/processes"),
      [value(s.clients.rings, format.plural(s.clients.rings, "ring"), "status:/clients/rings"), " · ", value(s.clients.iov_bytes, format.bytes(s.clients.iov_bytes), "status:/clients/iov_bytes"), " shared"],
      s.rings.failed_total > 0 ? [value(s.rings.failed_total, format.plural(s.rings.failed_total, "request"), "status:/rings/failed_total"), " failed since the start"] : "no request failed") : null);
}
