// Line charts with a legend that says the values, a summary for screen readers, arrow keys, and a table of the same values.
/* global uPlot */
import { h, draw, details } from "./dom.js";
import * as format from "./format.js";

const height = 190;
const all = new Set();

// ink returns a colour of the style sheet as canvases want it.
const probe = h("span", { class: "hidden" });
function ink(variable) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${variable})`;
  return getComputedStyle(probe).color;
}

// decades are the steps of a logarithmic axis: 1, 3, 10, 30 and so on.
function decades(least, most) {
  const steps = [];
  for (let ten = 10 ** Math.floor(Math.log10(least)); ten <= most * 1.001; ten *= 10) steps.push(...[ten, 3 * ten].filter((v) => v >= least * 0.999 && v <= most * 1.001));
  return steps;
}

// faint is a colour that fills the area under a line.
const faint = (color) => color.replace(/^rgb\((.*)\)$/, "rgba($1, 0.13)");

// redrawAll is for a change of the theme.
export function redrawAll() {
  for (const c of all) c.redraw();
}

// Steps of the axes of bytes, which are round in binary units.
const binary = [];
for (let unit = 1; unit < 2 ** 60; unit *= 1024) for (const n of [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]) binary.push(n * unit);

function ticks(u, splits) {
  const span = u.scales.x.max - u.scales.x.min;
  return splits.map((t) => format.clock(t, span < 180));
}

export class Chart {
  // series are {label, color, dash, fill}: color is a variable of the style sheet. form writes a value. most is the fixed end of the
  // y axis, if there is one; bytes: its steps are binary; log: it is logarithmic.
  // quiet is said where there is no value, and where zeros is false also where all are 0.
  // x, if given, is {form, log}: the x axis is not a time.
  constructor(host, { title, key, series, form, axis = form, most, bytes, log, x, quiet = "no value yet", zeros = true }) {
    Object.assign(this, { title, key, series, form, axis, most, bytes, log, x, quiet, zeros, data: null });
    this.legend = h("dl", { class: "legend" });
    this.plot = h("div", { class: "plot", tabindex: "0", role: "img", keydown: (e) => this.#key(e), blur: () => this.#leave() });
    this.nothing = h("p", { class: "empty nothing", hidden: true }, quiet);
    this.rows = h("div", { class: "rows" });
    this.table = details(`${key}-table`, "As a table", this.rows);
    this.table.addEventListener("toggle", () => this.#fillTable());
    this.figure = h("figure", { "data-chart": key }, h("figcaption", {}, h("h3", {}, title), this.legend), this.nothing, this.plot, this.table);
    host.append(this.figure);
    new ResizeObserver(() => this.u?.setSize({ width: this.plot.clientWidth, height })).observe(this.plot);
    all.add(this);
  }

  // update shows columns: the x values, then those of each series, all of one length.
  update(data, over) {
    this.data = data;
    this.over = over;
    const empty = data[0].length === 0 || data.slice(1).every((ys) => ys.every((y) => y === null || y === undefined || (y === 0 && !this.zeros)));
    this.nothing.hidden = !empty;
    this.plot.hidden = this.table.hidden = this.legend.hidden = empty;
    if (empty) return;
    if (!this.u) this.#make();
    else this.u.setData(data);
    this.#say();
    this.#fillTable();
  }

  redraw() {
    if (!this.u) return;
    this.u.redraw(false, true);
    this.#legend();
  }

  #make() {
    const pxOf = Math.max(1, this.plot.clientWidth);
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const rule = () => ink("--rule");
    const text = () => ink("--quiet");
    this.u = new uPlot({
      width: pxOf,
      height,
      padding: [10, 14, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: {
        x: { time: !this.x, distr: this.x?.log ? 3 : 1, log: 2 },
        y: this.log ? { distr: 3, range: (u, min, max) => (min === null || max === null ? [1e-5, 1e-2] : uPlot.rangeLog(min, Math.max(max, min * 10), 10, false)) } :
          { range: (u, min, max) => [0, this.most ?? (max > 0 ? max * 1.08 : 1)] },
      },
      axes: [
        { stroke: text, font, grid: { show: false }, ticks: { stroke: rule, width: 1, size: 4 }, gap: 4, size: 28, space: this.x ? 44 : 70,
          values: this.x ? (u, splits) => splits.map((v) => (v === null ? null : this.x.form(v))) : ticks },
        { stroke: text, font, grid: { stroke: rule, width: 1 }, ticks: { show: false }, gap: 6, size: 68, space: 34,
          values: (u, splits) => splits.map((v) => (v === null ? null : format.short(this.axis(v)))), ...(this.bytes ? { incrs: binary } : {}), ...(this.log ? { splits: (u, axis, least, most) => decades(least, most), filter: (u, splits) => splits } : {}) },
      ],
      series: [{}, ...this.series.map((s) => ({
        label: s.label,
        stroke: () => ink(s.color),
        fill: s.fill ? () => faint(ink(s.color)) : undefined,
        width: s.dash ? 1.25 : 1.75,
        dash: s.dash ? [4, 4] : undefined,
        points: { show: this.x ? true : undefined, size: 6 },
        spanGaps: false,
      }))],
      hooks: { setCursor: [() => this.#legend()] },
    }, this.data, this.plot);
  }

  // #latest is the last value of a series among its last ten: an older one says nothing about now.
  #latest(i) {
    const ys = this.data[i + 1];
    for (let k = ys.length - 1; k >= Math.max(0, ys.length - 10); k--) if (ys[k] !== null && ys[k] !== undefined) return ys[k];
    return null;
  }

  // #legend says the values under the cursor, or the latest.
  #legend() {
    if (!this.data) return;
    const at = this.u?.cursor.idx;
    const under = at !== null && at !== undefined && this.data[0][at] !== undefined;
    const when = under ? (this.x ? this.x.form(this.data[0][at]) : format.moment(this.data[0][at])) : null;
    draw(this.legend, this.series.map((s, i) => {
      if (this.data[i + 1].every((y) => y === null || y === undefined)) return null;
      const swatch = h("span", { class: s.dash ? "swatch dashed" : "swatch" });
      swatch.style.color = `var(${s.color})`;
      return h("div", {}, h("dt", {}, swatch, s.label), this.x && !under ? null : h("dd", {}, this.form(under ? this.data[i + 1][at] : this.#latest(i))));
    }), when === null ? null : h("div", { class: "when" }, h("dt", { class: "hidden" }, "time"), h("dd", {}, when)));
  }

  #say() {
    this.#legend();
    const parts = this.series.map((s, i) => {
      const ys = this.data[i + 1].filter((y) => y !== null && y !== undefined);
      if (ys.length === 0) return null;
      const least = ys.reduce((a, b) => Math.min(a, b)), most = ys.reduce((a, b) => Math.max(a, b));
      return `${s.label}: latest ${this.form(this.#latest(i))}, least ${this.form(least)}, most ${this.form(most)}`;
    }).filter((text) => text !== null);
    this.plot.setAttribute("aria-label", `${this.title}${this.over ? `, ${this.over}` : ""}. ${parts.join(". ")}. Arrow keys move along the line; the table below has the values.`);
  }

  // #fillTable shows at most a dozen rows, evenly apart, the last among them.
  #fillTable() {
    if (!this.table.open || !this.data || this.table.hidden) return;
    const xs = this.data[0], rows = [];
    const step = this.x ? 1 : Math.max(1, Math.ceil(xs.length / 12));
    for (let k = xs.length - 1; k >= 0; k -= step) rows.unshift(k);
    draw(this.rows, h("table", { class: "dense" },
      h("caption", { class: "hidden" }, this.title),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, this.x ? "" : "Time"), this.series.map((s) => h("th", { scope: "col", class: "number" }, s.label)))),
      h("tbody", {}, rows.map((k) => h("tr", {}, h("th", { scope: "row" }, this.x ? this.x.form(xs[k]) : format.moment(xs[k])),
        this.series.map((s, i) => h("td", { class: "number" }, this.form(this.data[i + 1][k]))))))));
  }

  #key(e) {
    const last = this.data[0].length - 1;
    const at = this.u.cursor.idx ?? last;
    const step = this.x ? 1 : Math.max(1, Math.round(last / 60));
    const to = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: last }[e.key];
    if (e.key === "Escape") this.#leave();
    if (to === undefined) return;
    e.preventDefault();
    const k = Math.min(last, Math.max(0, to));
    this.legend.setAttribute("aria-live", "polite");
    this.u.setCursor({ left: this.u.valToPos(this.data[0][k], "x"), top: 1 });
  }

  #leave() {
    this.legend.removeAttribute("aria-live");
    this.u?.setCursor({ left: -10, top: -10 });
  }
}
