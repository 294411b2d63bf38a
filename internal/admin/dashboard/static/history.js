// The series of /history by name.

export class History {
  constructor(answer) {
    this.times = answer.times;
    this.window = answer.window;
    this.series = new Map(answer.series.map((s) => [s.name, s.values]));
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
