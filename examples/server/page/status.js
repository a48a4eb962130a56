"use strict";
// Everything from the server is inserted as text, never as markup: callers choose scopes and names.

const WINDOW_S = 600; // as the server remembers
const MODES = {
  on: "Answers are read from the cache, and new ones are stored.",
  read: "Answers are read from the cache; nothing is stored.",
  refresh: "The model always runs, and its answers replace what is stored.",
  verify: "The model always runs, and what is stored is compared with its answers.",
  off: "The model always runs. No file of the cache is opened.",
};
const $ = (id) => document.getElementById(id);

let samples = [];
let started = null;
let last = 0; // time of the newest sample
let lastMode = "on"; // what the switch goes back to
let isSwitching = false;
let lostSince = null;

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}
function drawn(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
// Leaves a text that is the same alone, so that a reader's selection stays.
function tell(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

// --- Numbers for people ---

const grouped = (number) => Math.round(number).toLocaleString("en-US");
function digits(number) {
  if (number >= 100 || Number.isInteger(number)) return grouped(number);
  return number >= 10 ? number.toFixed(1) : number.toPrecision(2);
}
function milliseconds(ms) {
  if (!(ms > 0)) return "–";
  if (ms < 1) return `${digits(ms * 1000)} µs`;
  return ms < 1000 ? `${digits(ms)} ms` : `${digits(ms / 1000)} s`;
}
function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${digits(count)} ${units[unit]}`;
}
function duration(s) {
  if (s < 1) return s > 0 ? milliseconds(s * 1000) : "0 s";
  if (s < 60) return `${digits(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
const clock = (s) => new Date(s * 1000).toLocaleTimeString("en-GB");

// --- Charts ---

class Chart {
  constructor(place, options) {
    Object.assign(this, options);
    this.svg = drawn("svg", { role: "img", tabindex: "0" });
    this.legend = element("ul", { className: "legend" });
    $(place).append(this.legend, this.svg);
    this.at = null; // seconds before now that the cursor points at
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      this.point(((event.clientX - box.left - this.left) / (box.width - this.left)) * this.span() - this.span());
    });
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("blur", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      this.point((this.at ?? 0) + step);
    });
    this.left = 52;
  }
  span() { // from a minute on as long as there is something to show
    const first = samples[0]?.at_s ?? 0;
    const newest = samples.at(-1)?.at_s ?? 0;
    return Math.min(WINDOW_S, Math.max(60, newest - first));
  }
  point(at) {
    this.at = at === null ? null : Math.max(-this.span(), Math.min(0, at));
    this.draw();
  }
  draw() {
    const width = this.svg.clientWidth || 400;
    const height = this.svg.clientHeight || 200;
    const newest = samples.at(-1)?.at_s ?? 0;
    const span = this.span();
    const shown = samples.filter((sample) => sample.at_s >= newest - span);
    const x = (sample) => this.left + ((sample.at_s - newest + span) / span) * (width - this.left);
    const bottom = height - 22;
    const scale = this.scale(shown, 8, bottom);
    this.svg.replaceChildren(drawn("title", {}, this.summary(shown)));
    for (const [y, label] of scale.ticks) {
      this.svg.append(
        drawn("line", { class: "grid", x1: this.left, x2: width, y1: y, y2: y }),
        drawn("text", { class: "axis", x: this.left - 8, y: y + 4, "text-anchor": "end" }, label));
    }
    for (const share of [0, 0.5, 1]) {
      const text = share === 1 ? "now" : clock(newest - span * (1 - share));
      const anchor = ["start", "middle", "end"][share * 2];
      const at = this.left + share * (width - this.left);
      this.svg.append(drawn("text", { class: "axis", x: at, y: height - 3, "text-anchor": anchor }, text));
    }
    this.shapes(shown, x, scale.y);
    this.tellValues(shown, newest, x, bottom);
  }
  tellValues(shown, newest, x, bottom) {
    const at = this.at === null ? newest : newest + this.at;
    const near = (a, b) => (Math.abs(a.at_s - at) <= Math.abs(b.at_s - at) ? a : b);
    const sample = shown.length > 0 ? shown.reduce(near) : null;
    if (sample && this.at !== null) {
      this.svg.append(drawn("line", { class: "cursor", x1: x(sample), x2: x(sample), y1: 4, y2: bottom }));
    }
    const items = Object.entries(this.series).map(([name, title]) =>
      element("li", {}, element("i", { className: name }), `${title} `,
        element("b", { textContent: sample ? this.format(sample[name]) : "–" })));
    items.push(element("li", { className: "when", textContent: sample && this.at !== null ? clock(sample.at_s) : "now" }));
    this.legend.replaceChildren(...items);
  }
}

class Lookups extends Chart {
  format(value) { return digits(value); }
  summary(shown) {
    const total = (name) => grouped(shown.reduce((sum, sample) => sum + sample[name], 0));
    return `The last ${duration(Math.round(this.span()))}: ${total("hits")} hits, ${total("misses")} misses, ${total("bypassed")} bypassed.`;
  }
  scale(shown, top, bottom) {
    const highest = Math.max(4, ...shown.map((sample) => sample.hits + sample.misses + sample.bypassed));
    const unit = 10 ** Math.floor(Math.log10(highest));
    const most = [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].map((n) => n * unit).find((n) => n >= highest);
    const y = (value) => bottom - (value / most) * (bottom - top);
    return { y, ticks: [0, most / 2, most].map((value) => [y(value), bytes(value).replace(/ ?B$/, "").replace(" ", "")]) };
  }
  shapes(shown, x, y) {
    const base = shown.map(() => 0);
    for (const name of Object.keys(this.series)) {
      const under = shown.map((sample, i) => `${x(sample).toFixed(1)},${y(base[i]).toFixed(1)}`);
      shown.forEach((sample, i) => { base[i] += sample[name]; });
      const over = shown.map((sample, i) => `${x(sample).toFixed(1)},${y(base[i]).toFixed(1)}`);
      this.svg.append(drawn("polygon", { class: `area ${name}`, points: [...over, ...under.reverse()].join(" ") }));
    }
  }
}

class Latency extends Chart {
  format(value) { return milliseconds(value); }
  summary() {
    return `Half of the answers of the last minute took at most ${$("p50").textContent}, 99 % at most ${$("p99").textContent}.`;
  }
  scale(shown, top, bottom) { // logarithmic: hits and runs lie far apart
    const values = shown.flatMap((sample) => [sample.p50_ms, sample.p99_ms]).filter((ms) => ms > 0);
    const low = Math.floor(Math.log10(Math.min(1, ...values)));
    const high = Math.max(low + 2, Math.ceil(Math.log10(Math.max(1, ...values))));
    const y = (ms) => bottom - ((Math.log10(ms) - low) / (high - low)) * (bottom - top);
    const ticks = [];
    for (let power = low; power <= high; power += 1) ticks.push([y(10 ** power), milliseconds(10 ** power)]);
    return { y, ticks };
  }
  shapes(shown, x, y) { // with gaps where nothing was asked
    for (const name of Object.keys(this.series)) {
      let path = "";
      let isDown = false;
      for (const sample of shown) {
        const has = sample[name] > 0;
        if (has) path += `${isDown ? "L" : "M"}${x(sample).toFixed(1)} ${y(sample[name]).toFixed(1)}`;
        if (has && !isDown) path += "h.1"; // a single second is a dot
        isDown = has;
      }
      if (path) this.svg.append(drawn("path", { class: `line ${name}`, d: path }));
    }
  }
}

const charts = [
  new Lookups("lookups", { series: { hits: "Hits", misses: "Misses", bypassed: "Bypassed" } }),
  new Latency("latency", { series: { p50_ms: "p50", p99_ms: "p99" } }),
];

// --- The mode ---

function showMode(status) {
  const { mode, process } = status;
  if (process !== "off") lastMode = process;
  tell("mode", mode === "off" ? "off" : mode === "on" ? "on" : `in mode ${mode}`);
  tell("mode-meaning", MODES[mode] ?? "");
  $("switch").setAttribute("aria-checked", String(process !== "off"));
  $("switch").disabled = isSwitching;
  for (const button of $("modes").children) {
    button.setAttribute("aria-pressed", String(button.textContent === process));
    button.disabled = isSwitching;
  }
  const isLessHere = mode !== process && !isSwitching;
  tell("mode-note", isLessHere
    ? `This process is in mode ${process}, and the directory allows less. "modcache mode on ${status.dir}" lifts that.`
    : "");
}
async function setMode(mode) {
  isSwitching = true;
  try {
    const answer = await fetch("cache/mode", {
      method: "PUT",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ mode }),
    });
    const told = await answer.json();
    isSwitching = false;
    if (answer.ok) await poll();
    else tell("mode-note", told.error);
  } catch (error) {
    isSwitching = false;
    tell("mode-note", `The mode could not be set: ${error.message}`);
  }
}
for (const mode of Object.keys(MODES)) {
  const button = element("button", { type: "button", textContent: mode, title: MODES[mode] });
  button.addEventListener("click", () => setMode(mode));
  $("modes").append(button);
}
$("switch").addEventListener("click", () => {
  setMode($("switch").getAttribute("aria-checked") === "true" ? "off" : lastMode);
});

// --- What is shown ---

function showFigures(status) {
  const minute = samples.filter((sample) => sample.at_s > samples.at(-1).at_s - 60);
  const sum = (name) => minute.reduce((total, sample) => total + sample[name], 0);
  const lookups = sum("hits") + sum("misses");
  tell("rate", lookups > 0 ? `${((100 * sum("hits")) / lookups).toFixed(1)} %` : "–");
  tell("answers", minute.length > 0 ? digits(sum("requests") / minute.length) : "–");
  $("answers").classList.toggle("bad", sum("failed") > 0);
  tell("answers-note", sum("failed") > 0 ? `a second; ${grouped(sum("failed"))} failed` : "a second, last minute");
  tell("p50", milliseconds(status.minute.p50_ms));
  tell("p99", milliseconds(status.minute.p99_ms));
  tell("saved", duration(status.totals.saved_us / 1e6));
}
function noteOnScopes(status) {
  const more = status.scopes_in_all - Math.min(8, status.scopes.length);
  const notes = [];
  if (status.scopes_in_all === 0) notes.push("Nothing is stored so far.");
  if (more > 0) notes.push(`and ${more} more`);
  if (status.mode === "off") {
    notes.push(status.scopes_in_all === null
      ? "Sizes are not read in mode off."
      : "Sizes as read before the mode was off.");
  }
  return notes.join(" ");
}
function showScopes(status) {
  const most = Math.max(1, ...status.scopes.map((item) => item.bytes));
  $("scopes").replaceChildren(...status.scopes.slice(0, 8).map((item) => {
    const bar = drawn("svg", { "aria-hidden": "true" });
    bar.append(drawn("rect", { width: `${(100 * item.bytes) / most}%`, height: "100%" }));
    const names = element("div", { className: "names" },
      element("span", { textContent: item.scope, title: item.scope }),
      element("span", { textContent: bytes(item.bytes) }));
    return element("li", {}, names, bar);
  }));
  tell("scopes-note", noteOnScopes(status));
}
function showTotals(totals) {
  const titles = {
    requests: "Answers", hits: "Hits", misses: "Misses", bypassed: "Bypassed", stored: "Stored",
    refused: "Refused (4xx)", failed: "Failed (5xx)", errors: "Errors of the cache",
  };
  if (!$("total-requests")) {
    $("totals").append(...Object.entries(titles).map(([name, title]) =>
      element("div", {}, element("dt", { textContent: title }), element("dd", { id: `total-${name}` }))));
  }
  for (const name of Object.keys(titles)) tell(`total-${name}`, grouped(totals[name]));
}
function show(status) {
  if (status.started_s !== started) { // another process answers now
    started = status.started_s;
    samples = [];
    last = 0;
  }
  const news = status.samples.filter((sample) => sample.at_s > last); // two polls may overlap
  samples = [...samples, ...news].slice(-WINDOW_S);
  last = samples.at(-1)?.at_s ?? 0;
  tell("model", status.model);
  tell("dir", status.dir);
  tell("uptime", `up ${duration(status.now_s - started)}`);
  document.title = `${status.model} · modcache ${status.mode}`;
  showMode(status);
  if (samples.length > 0) showFigures(status);
  showScopes(status);
  showTotals(status.totals);
  for (const chart of charts) chart.draw();
}

async function poll() {
  try {
    const answer = await fetch(`status?after=${last}`, { signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(await answer.json());
    lostSince = null;
    tell("lost", "");
  } catch (error) {
    lostSince ??= Date.now();
    tell("lost", `No answer from the server since ${clock(lostSince / 1000)} (${error.message}). Trying on.`);
  }
  $("lost").hidden = lostSince === null;
  document.body.classList.toggle("stale", lostSince !== null);
}
async function go() {
  if (!document.hidden) await poll();
  setTimeout(go, 1000);
}
addEventListener("resize", () => charts.forEach((chart) => chart.draw()));
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
go();
