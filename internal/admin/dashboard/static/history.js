// The series of /history by name.

export class History {
  // before is what is known already: the answer may only have what came after it.
  constructor(answer, before = null) {
    const kept = before ? answer.first - before.first : -1;
    const joins = kept >= 0 && kept <= before.times.length;
    const dropped = joins ? Math.max(kept + answer.times.length - Math.max(before.times.length, answer.times.length), 0) : 0;
    const joined = (old, added) => (joins ? [...old.slice(0, kept), ...added].slice(dropped) : added);
    // The clock may have been set meanwhile: all times are as the answer has them.
    this.times = joined(answer.times.length ? before?.times.map((_, i) => answer.times[0] - (kept - i) * answer.step_seconds) : before?.times, answer.times);
    this.window = answer.window;
    this.first = joins ? before.first + dropped : answer.first;
    this.measured = answer.measured;
    this.series = new Map(answer.series.map((s) => [s.name, joined(before?.series.get(s.name) ?? before?.times.map(() => null), s.values)]));
  }

  // columns are what a chart shows; a series that the daemon does not have is empty.
  columns(...names) {
    return [this.times, ...names.map((n) => this.series.get(n) ?? this.times.map(() => null))];
  }

  // latest is the last value of the last ten steps, null if there is none.
  latest(name) {
    const values = this.series.get(name) ?? [];
    for (let k = values.length - 1; k >= Math.max(0, values.length - 10); k--) if (values[k] !== null) return values[k];
    return null;
  }

  // most is the largest value, null if there is none.
  most(name) {
    return (this.series.get(name) ?? []).reduce((m, v) => (v !== null && (m === null || v > m) ? v : m), null);
  }

  get over() {
    return this.window === "24h" ? "the last 24 hours" : "the last 10 minutes";
  }
}
