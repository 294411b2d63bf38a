// How numbers are written: always with their unit, three digits that matter.

export const none = "–";

// digits writes a number that is shown with a unit: three significant digits, no exponent.
function digits(v) {
  const size = Math.abs(v);
  if (size >= 100 || v === 0) return v.toFixed(0);
  if (size >= 10) return v.toFixed(1);
  return v.toFixed(2);
}

// scaled writes v in the largest unit that leaves at least 1. A value that rounds up to the next unit is written in that.
function scaled(v, base, units) {
  if (v === null || v === undefined || !Number.isFinite(v)) return none;
  let i = 0;
  while (i < units.length - 1 && Math.abs(v) >= base - 0.5) {
    v /= base;
    i++;
  }
  return `${i === 0 && Number.isInteger(v) ? v : digits(v)}\u00a0${units[i]}`.trim();
}

export const bytes = (v) => scaled(v, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]);
export const bytesPerSecond = (v) => scaled(v, 1024, ["B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"]);

// perSecond writes how many of what there are in a second.
export const perSecond = (v, what = "") => scaled(v, 1000, [`${what}/s`, `k\u00a0${what}/s`, `M\u00a0${what}/s`].map((u) => u.replace("\u00a0/", "/")));

// short leaves out zeros that say nothing, for axes.
export const short = (text) => text.replace(/(\.\d*?)0+(?=\D)/, "$1").replace(/\.(?=\D)/, "");

export function count(v) {
  if (v === null || v === undefined || !Number.isFinite(v)) return none;
  return Number.isInteger(v) ? v.toLocaleString("en-US") : digits(v);
}

// seconds writes how long a request took.
export function seconds(v) {
  if (v === null || v === undefined || !Number.isFinite(v)) return none;
  if (v === 0) return "0\u00a0s";
  if (v < 0.9995e-3) return `${digits(v * 1e6)}\u00a0µs`;
  if (v < 0.9995) return `${digits(v * 1e3)}\u00a0ms`;
  return v < 60 ? `${digits(v)}\u00a0s` : age(v);
}

// age writes how long something has lasted, in at most two units.
export function age(v) {
  if (v === null || v === undefined || !Number.isFinite(v)) return none;
  const s = Math.max(0, Math.floor(v));
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  for (const [i, [size, unit]] of units.entries()) {
    if (s < size && size > 1) continue;
    const rest = i + 1 < units.length ? Math.floor((s % size) / units[i + 1][0]) : 0;
    return `${Math.floor(s / size)}\u00a0${unit}${rest > 0 ? ` ${rest}\u00a0${units[i + 1][1]}` : ""}`;
  }
  return none;
}

export function ratio(v) {
  return v === null || v === undefined || !Number.isFinite(v) ? none : `${(v * 100).toFixed(1)}\u00a0%`;
}

const two = (n) => String(n).padStart(2, "0");

// clock writes the time of day in the browser's time zone, from seconds since 1970.
export function clock(unix, withSeconds = true) {
  const t = new Date(unix * 1000);
  return `${two(t.getHours())}:${two(t.getMinutes())}${withSeconds ? `:${two(t.getSeconds())}` : ""}`;
}

// moment writes a time of another day with its date.
export function moment(unix) {
  const t = new Date(unix * 1000);
  const today = new Date().toDateString() === t.toDateString();
  return today ? clock(unix) : `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${clock(unix)}`;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)}\u00a0${n === 1 ? one : many}`;
