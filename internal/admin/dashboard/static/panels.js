// The panels below the tiles: each shows one answer of the API.
import { h, name, value, bar, table, details, say, draw, sentence } from "./dom.js";
import { Chart } from "./chart.js";
import { treemap } from "./treemap.js";
import * as format from "./format.js";

export const body = (panel) => document.querySelector(`#${panel} [data-part="body"]`);
const charts = (panel) => document.querySelector(`#${panel} [data-part="charts"]`);
const code = (text) => h("code", {}, text);
const number = (title) => ({ title, number: true });
const words = (title) => ({ title });
const since = (rfc3339) => Date.parse(rfc3339) / 1000;

// Over time.

let over = null;

function makeCharts() {
  const read = { label: "read", color: "--read" }, write = { label: "written", color: "--write" };
  over = [
    [new Chart(charts("traffic"), { key: "throughput", title: "Throughput", form: format.bytesPerSecond, bytes: true, quiet: "No engine has read or written in this time.",
      series: [{ ...read, fill: true }, { ...write, fill: true }] }), ["ring_read_bytes", "ring_write_bytes"]],
    [new Chart(charts("traffic"), { key: "latency", title: "Latency", form: format.seconds, log: true, quiet: "No request in this time.",
      series: [{ label: "read p99", color: "--read" }, { label: "read p50", color: "--read", dash: true }, { label: "write p99", color: "--write" }, { label: "write p50", color: "--write", dash: true }] }),
    ["ring_read_p99", "ring_read_p50", "ring_write_p99", "ring_write_p50"]],
    [new Chart(charts("traffic"), { key: "requests", title: "Requests", form: format.perSecond, axis: format.perSecond, quiet: "No request in this time.",
      series: [{ label: "reads", color: "--read" }, { label: "writes", color: "--write" }, { label: "failed", color: "--bad" }] }), ["ring_reads", "ring_writes", "ring_failed"]],
    [new Chart(charts("traffic"), { key: "fill", title: "Disk", form: format.bytes, bytes: true, quiet: "Not measured yet.",
      series: [{ label: "used by the cache", color: "--read", fill: true }, { label: "limit", color: "--bad", dash: true }, { label: "free on the disk", color: "--quiet" }] }), ["used_bytes", "limit_bytes", "free_bytes"]],
    [new Chart(charts("hits"), { key: "hit-ratio", title: "Hit rate", form: format.ratio, axis: (v) => `${Math.round(v * 100)}\u00a0%`, most: 1, quiet: "No lookup in this time.",
      series: [{ label: "hits", color: "--good", fill: true }] }), ["hit_ratio"]],
    [new Chart(charts("evictions"), { key: "evicted", title: "Evicted", form: format.bytesPerSecond, bytes: true, quiet: "Nothing was evicted in this time.", zeros: false,
      series: [{ label: "evicted", color: "--write", fill: true }] }), ["evicted_bytes"]],
  ];
}

export function showHistory(past) {
  if (!over) makeCharts();
  for (const [chart, names] of over) {
    const data = past.columns(...names);
    // A limit of 0 is none, and a latency of 0 has no place on a logarithmic axis.
    for (const [i, n] of names.entries()) if (n === "limit_bytes" || /_p\d+$/.test(n)) data[i + 1] = data[i + 1].map((v) => (v === 0 ? null : v));
    // Beside a limit, what is free on a much larger disk would leave no height for what is used.
    if (names.includes("free_bytes") && data[2].some((v) => v !== null)) data[3] = data[3].map(() => null);
    chart.update(data, past.over);
  }
}

// Hit rate by engine and model.

const engineName = (engine) => (engine === "" ? h("i", {}, "of no known engine") : name(engine));
const modelName = (model) => (model === "" ? h("i", {}, "not told by the names") : name(model));

export function showHits(a) {
  if ((a.engines ?? []).length === 0) return draw(body("hits"), say("No engine has looked anything up since the daemon started."));
  draw(body("hits"), table("Hit rate by engine and model since the daemon started", [words("Engine and model"), number("Hit rate"), number("Lookups"), number("Misses")],
    (a.engines ?? []).map((e, i) => [
      h("span", { class: "stack" }, engineName(e.engine), h("small", {}, modelName(e.model))),
      [value(e.hit_ratio, format.ratio(e.hit_ratio), `hits:/engines/${i}/hit_ratio`), e.hit_ratio === null ? null : bar(e.hit_ratio, "good")],
      value(e.lookups_total, format.count(e.lookups_total), `hits:/engines/${i}/lookups_total`),
      value(e.misses_total, format.count(e.misses_total), `hits:/engines/${i}/misses_total`),
    ])), h("p", { class: "quiet" }, "Since the daemon started."));
}

// The miss-ratio curve.

const factor = (f) => `${Number(f.toFixed(f < 1 ? 3 : 1))}×`;
let curve = null;

export function showCurve(a) {
  const near = (f) => (a.points ?? []).findIndex((p) => Math.abs(p.factor / f - 1) < 0.01);
  const chosen = [0.5, 1, 2, 4].map((f) => [f, near(f)]).filter(([, i]) => i >= 0);
  curve ??= new Chart(charts("curve"), { key: "curve", title: "Hit rate by capacity", form: format.ratio, axis: (v) => `${Math.round(v * 100)}\u00a0%`, most: 1, x: { form: factor, log: true },
    series: [{ label: "would have hit", color: "--good", fill: true }] });
  charts("curve").hidden = (a.points ?? []).length === 0;
  if (charts("curve").hidden) return draw(body("curve"), say("No curve yet: it needs a capacity (", code("serve --capacity"), ") and some use of the cache."));
  curve.update([(a.points ?? []).map((p) => p.factor), (a.points ?? []).map((p) => p.hit_ratio)], "by multiples of the capacity");
  const now = a.points[near(1)]?.hit_ratio ?? a.hit_ratio;
  draw(body("curve"), table("Hit rate at other capacities", [words("Capacity"), number("Size"), number("Would have hit"), number("Difference")],
    chosen.map(([f, i]) => {
      const p = a.points[i], more = (p.hit_ratio - now) * 100;
      return [f === 1 ? "as it is" : factor(f), value(p.capacity_bytes, format.bytes(p.capacity_bytes), `curve:/points/${i}/capacity_bytes`),
        value(p.hit_ratio, format.ratio(p.hit_ratio), `curve:/points/${i}/hit_ratio`), f === 1 ? "" : Math.abs(more) < 0.05 ? "none" : `${more < 0 ? "−" : "+"}${Math.abs(more).toFixed(1)} points`];
    })));
}

// What fills the disk.

let usage = null;

function drawUsage() {
  const part = body("disk"), a = usage;
  if (!a) return;
  if (!a.keeps) return draw(part, say("Not counted: this daemon has no capacity. ", code("kv3fs serve --capacity 90%"), " counts the files, shows them here, and evicts what was used longest ago when they fill it."));
  const engines = (a.engines ?? []).map((e) => ({
    name: e.engine === "" ? "other files" : e.engine, unknown: e.engine === "", bytes: e.bytes,
    models: (e.models ?? []).map((m) => {
      const directories = (m.directories ?? []).map((d) => ({ name: d.path, bytes: d.bytes }));
      const rest = m.bytes - directories.reduce((sum, d) => sum + d.bytes, 0);
      if (rest > 0) directories.push({ name: "", bytes: rest });
      return { name: m.model === "" ? (e.engine === "" ? "of no known engine" : "model not told") : m.model, bytes: m.bytes, directories };
    }),
  }));
  if (a.bytes === 0) return draw(part, say(a.complete ? "No file yet." : "Still counting the files."));
  const rows = [];
  (a.engines ?? []).forEach((e, i) => (e.models ?? []).forEach((m, k) => rows.push([engineName(e.engine), modelName(m.model),
    value(m.bytes, format.bytes(m.bytes), `usage:/engines/${i}/models/${k}/bytes`), value(m.files, format.count(m.files), `usage:/engines/${i}/models/${k}/files`), format.ratio(m.bytes / a.bytes)])));
  const width = Math.max(1, part.clientWidth);
  draw(part,
    h("p", { class: "sum" }, value(a.bytes, format.bytes(a.bytes), "usage:/bytes"), " in ", value(a.files, format.plural(a.files, "file"), "usage:/files"), a.complete ? null : ", still counting"),
    h("div", { role: "img", "aria-label": `Areas by size: ${engines.map((e) => `${e.name} ${format.bytes(e.bytes)}`).join(", ")}. The tables below have the values.` }, treemap(engines, width, width < 500 ? 340 : 300)),
    details("usage-engines", "By engine and model, as a table", table("Bytes by engine and model", [words("Engine"), words("Model"), number("Size"), number("Files"), number("Share")], rows)),
    details("usage-directories", "By directory, as a table", directories(a)));
}

function directories(a) {
  const rows = [];
  const walk = (list, depth, at) => list.forEach((d, i) => {
    const here = `${at}/directories/${i}`;
    const indent = h("span", { class: "indent" });
    indent.style.width = `${depth * 1.2}em`;
    rows.push([[indent, name(d.path)], value(d.bytes, format.bytes(d.bytes), `usage:${here}/bytes`), value(d.files, format.count(d.files), `usage:${here}/files`), d.limit_bytes > 0 ? format.bytes(d.limit_bytes) : format.none]);
    walk(d.directories ?? [], depth + 1, here);
  });
  walk(a.directories ?? [], 0, "");
  return [table("Bytes by directory", [words("Directory"), number("Size"), number("Files"), number("Quota")], rows),
    a.more > 0 ? h("p", { class: "quiet" }, `${format.plural(a.more, "smaller directory", "smaller directories")} left out; kv3fs du shows all.`) : null];
}

export function showUsage(a) {
  usage = a;
  drawUsage();
}
new ResizeObserver(drawUsage).observe(document.getElementById("disk"));

// Evictions, and rules.

const reasonNames = { room: "to make room", ttl: "unused for too long (ttl)", abandoned: "unfinished and abandoned", operator: "by hand" };

function bucket(bounds, i) {
  if (i === 0) return `less than ${format.age(bounds[0])}`;
  return i === bounds.length ? `${format.age(bounds[i - 1])} and more` : `${format.age(bounds[i - 1])} to ${format.age(bounds[i])}`;
}

function ages(a) {
  if (!a || a.count === 0) return null;
  const most = Math.max(...a.files);
  return h("div", {}, h("h3", {}, "How long evicted files had not been used"), table("Files by how long they had not been used when they were evicted", [words("Unused for"), number("Files"), number("Share")],
    a.files.map((n, i) => [bucket(a.bounds_seconds, i), value(n, format.count(n), `keeper:/age_at_eviction/files/${i}`), [format.ratio(n / a.count), bar(most > 0 ? n / most : 0, "neutral")]]).filter((_, i) => a.files[i] > 0)));
}

export function showKeeper(a) {
  charts("evictions").hidden = !a.keeps;
  if (!a.keeps) {
    draw(body("evictions"), say("Nothing is evicted: ", name(a.why, sentence), "."));
    draw(body("rules"), say("Rules apply where a daemon keeps a capacity: ", code("serve --capacity"), "."));
    return;
  }
  const gone = (a.evictions ?? []).filter((e) => e.files_total > 0);
  draw(body("evictions"), h("div", {},
    gone.length === 0 ? say("Nothing was evicted since the daemon started.") :
      table("Evictions by reason since the daemon started", [words("Reason"), number("Files"), number("Size")],
        (a.evictions ?? []).map((e, i) => [reasonNames[e.reason] ?? name(e.reason), value(e.files_total, format.count(e.files_total), `keeper:/evictions/${i}/files_total`),
          e.bytes_total === null ? format.none : value(e.bytes_total, format.bytes(e.bytes_total), `keeper:/evictions/${i}/bytes_total`)]).filter((_, i) => a.evictions[i].files_total > 0)),
    a.state.refused_writes > 0 ? h("p", { class: "wrong" }, value(a.state.refused_writes, format.plural(a.state.refused_writes, "write"), "keeper:/state/refused_writes"), " found no room and failed with ENOSPC or EDQUOT.") : null),
    ages(a.age_at_eviction));
  const quotas = a.quotas ?? [], pins = a.pins ?? [], ttls = a.ttls ?? [];
  draw(body("rules"),
    quotas.length + pins.length + ttls.length === 0 ? say("No rules: every directory may take the whole capacity, and what was used longest ago goes first.") : null,
    quotas.length === 0 ? null : table("Quotas", [words("Directory"), number("Used"), number("Quota"), number("Full")], quotas.map((q, i) => [[name(q.path), q.missing ? h("small", {}, " (no such directory now)") : null],
      value(q.used_bytes, format.bytes(q.used_bytes), `keeper:/quotas/${i}/used_bytes`), value(q.limit_bytes, format.bytes(q.limit_bytes), `keeper:/quotas/${i}/limit_bytes`),
      [format.ratio(q.used_bytes / q.limit_bytes), bar(q.used_bytes / q.limit_bytes, q.used_bytes > q.limit_bytes ? "bad" : "good")]])),
    pins.length === 0 ? null : [h("h3", {}, "Never evicted"), h("ul", { class: "plain" }, pins.map((p) => h("li", {}, [p.pattern, p.owner, p.model].filter(Boolean).map((t, i) => [i > 0 ? " · " : null, name(t)]))))],
    ttls.length === 0 ? null : [h("h3", {}, "Removed when unused"), h("ul", { class: "plain" }, ttls.map((t) => h("li", {}, name(t.pattern), ` after ${format.age(t.unused_seconds)}`)))]);
}

// Clients.

function registration(r) {
  const what = r.kind === "ring" ? [`ring for ${r.direction === "write" ? "writes" : "reads"}`, r.priority ? `, ${r.priority} priority` : null] : "iov";
  return h("li", {}, name(r.name), ": ", what, r.bytes > 0 ? `, ${format.bytes(r.bytes)}` : null);
}

export function showClients(a) {
  if ((a.clients ?? []).length === 0) return draw(body("clients"), say("No process has a ring. Point an engine at this mount, or try it: ", code("kv3fs bench ring"), "."));
  draw(body("clients"), table("Clients", [words("Process"), words("User"), number("Rings"), number("Iovs"), number("Shared memory"), words("Registrations")], (a.clients ?? []).map((c, i) => [
    h("span", { class: "stack" }, c.name ? name(c.name) : c.pid > 0 ? "a process" : "processes", h("small", {}, c.pid > 0 ? `pid ${c.pid}` : "in another container")),
    name(c.user || String(c.uid)),
    value(c.rings, format.count(c.rings), `clients:/clients/${i}/rings`),
    value(c.iovs, format.count(c.iovs), `clients:/clients/${i}/iovs`),
    value(c.iov_bytes, format.bytes(c.iov_bytes), `clients:/clients/${i}/iov_bytes`),
    (c.registrations ?? []).length === 0 ? format.none : details(`client-${c.pid}-${i}`, `Show ${c.registrations.length + c.more}`, h("ul", { class: "plain" }, (c.registrations ?? []).map(registration), c.more > 0 ? h("li", {}, `and ${format.count(c.more)} more`) : null)),
  ])), a.more > 0 ? h("p", { class: "quiet" }, `${format.plural(a.more, "more client")} left out.`) : null);
}

// Page service.

export function showPages(a) {
  if (!a.serves) return draw(body("pages"), say("This daemon runs no page service. ", code("serve --pages-listen 127.0.0.1:18000"), " turns it on; engines that keep a file per block do not need it."));
  if ((a.spaces ?? []).length === 0) return draw(body("pages"), say(!a.here ? "Another host leads, and knows the spaces: see the dashboard of that host." : "The page service runs, and no engine has asked it for anything yet."));
  draw(body("pages"), table("Page service spaces", [words("Space"), number("Keys"), number("Hit rate"), number("Free pages"), number("Refused"), number("Evicted")], (a.spaces ?? []).map((s, i) => {
    const at = `pages:/spaces/${i}`, asked = s.counters.hits_total + s.counters.misses_total;
    const free = (s.ranks ?? []).reduce((n, r) => n + r.free, 0), pages = (s.ranks ?? []).reduce((n, r) => n + r.num_pages, 0);
    return [
      h("span", { class: "stack" }, name(s.set || "default"), h("small", {}, s.namespace ? ["namespace ", name(s.namespace), ", "] : null, format.plural((s.ranks ?? []).length, "rank"))),
      value(s.keys, format.count(s.keys), `${at}/keys`), asked > 0 ? format.ratio(s.counters.hits_total / asked) : format.none, `${format.count(free)} of ${format.count(pages)}`,
      value(s.counters.refused_total, format.count(s.counters.refused_total), `${at}/counters/refused_total`), value(s.counters.evicted_total, format.count(s.counters.evicted_total), `${at}/counters/evicted_total`),
    ];
  })), a.more > 0 ? h("p", { class: "quiet" }, `${format.plural(a.more, "more space")} left out.`) : null);
}

// Hosts. Those that are listed no more are shown for a while, since the API has only those that are.

const goneSeconds = 3600;
const listed = new Map(); // by id: what was said of a host last, and when

export function showHosts(a) {
  if (!a.cluster) return draw(body("hosts"), say("One host: this daemon keeps its page index for itself. ", code("serve --pages-store etcd://HOST:2379/PREFIX"), " shares one among hosts."));
  const now = Date.now() / 1000, here = new Set((a.hosts ?? []).map((o) => o.id));
  for (const o of a.hosts ?? []) listed.set(o.id, { host: o, at: now });
  for (const [id, o] of listed) if (now - o.at > goneSeconds) listed.delete(id);
  const gone = Array.from(listed.values()).filter((o) => !here.has(o.host.id));
  const who = (o) => h("span", { class: "stack" }, h("span", {}, name(o.id), o.self ? " (this one)" : null), h("small", {}, name(o.address)));
  draw(body("hosts"),
    a.leader ? null : h("p", { class: "wrong" }, "No host leads: keys can be neither stored nor found until one does."),
    a.why ? h("p", { class: "wrong" }, name(a.why, sentence)) : null,
    table("Hosts", [words("Host"), words("Role"), number("Lag"), words("Version")], [
      ...(a.hosts ?? []).map((o, i) => [who(o), name(o.role), o.lag === null || o.lag === undefined ? format.none : value(o.lag, format.plural(o.lag, "change"), `hosts:/hosts/${i}/lag`), name(o.version)]),
      ...gone.map((o) => [who(o.host), h("span", { class: "wrong" }, `gone, last listed at ${format.clock(o.at)}`), format.none, name(o.host.version)])]));
}

// Findings.

const levels = { failure: "Failure", warning: "Warning", note: "Note", ok: "OK" };

const finding = (f) => h("li", { "data-level": f.status }, h("span", { class: "badge" }, levels[f.status] ?? name(f.status)), h("div", {}, h("p", {}, name(f.found, sentence)),
  f.needed ? h("p", { class: "quiet" }, "Needed: ", name(f.needed, sentence)) : null, f.fix ? h("p", {}, h("span", { class: "fix" }, "What to do: "), h("code", {}, name(f.fix, sentence))) : null, h("small", {}, name(f.id))));

export function showFindings(a) {
  const failed = a.error ? h("p", { class: "wrong" }, "The doctor could not look: ", name(a.error, sentence)) : null;
  if (failed && (a.findings ?? []).length === 0) return draw(body("findings"), failed);
  if (a.checked === null) return draw(body("findings"), say(a.running ? "The doctor is looking for the first time." : "The doctor has not looked yet."));
  const wrong = (a.findings ?? []).filter((f) => f.status === "failure" || f.status === "warning"), rest = (a.findings ?? []).filter((f) => !wrong.includes(f));
  draw(body("findings"),
    failed,
    wrong.length === 0 ? say("Nothing is wrong.") : h("ul", { class: "findings" }, wrong.map(finding)),
    rest.length === 0 ? null : details("findings-rest", `${format.plural(rest.length, "check")} without a problem`, h("ul", { class: "findings" }, rest.map(finding))),
    h("p", { class: "quiet" }, `Checked at ${format.moment(since(a.checked))}.`));
}
