// Draws the page of `modcache report` from the JSON in the element #data, which directory_page.cpp
// writes. All text goes through textContent and setAttribute, so names that look like HTML stay text.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const MAX_SHOWN = 40;

// Elements. A child is a node, a text, or a list of them; null is left out.
function element(tag, attributes, ...children) {
  const svg = ["svg", "path", "rect", "title"].includes(tag);
  const made = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flat(9).filter((child) => child !== null));
  return made;
}
const soft = (...children) => element("p", { class: "soft" }, children);
const fact = (text) => element("span", {}, text);
const section = (title, ...children) =>
  element("section", {}, element("h2", {}, title), children);

// Numbers, in the forms of the command line.
const countText = (count) => count.toLocaleString("en-US");
const numberOf = (count, one, many) => `${countText(count)} ${count === 1 ? one : many}`;
const shortNumber = (x) => x.toFixed(x < 9.995 ? 2 : x < 99.95 ? 1 : 0);

function sizeText(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB", "TB", "PB", "EB"];
  let number = bytes / 1000;
  let unit = 0;
  for (; number >= 999.5 && unit + 1 < units.length; ++unit) number /= 1000;
  return `${shortNumber(number)} ${units[unit]}`;
}

function durationText(us) {
  const twoUnits = (large, largeName, small, smallName) => {
    const rest = Math.floor((us % large) / small);
    return `${countText(Math.floor(us / large))} ${largeName}` + (rest ? ` ${rest} ${smallName}` : "");
  };
  if (us < 1000) return `${us} us`;
  if (us < 999500) return `${shortNumber(us / 1e3)} ms`;
  if (us < 60e6) return `${shortNumber(us / 1e6)} s`;
  if (us < 3600e6) return twoUnits(60e6, "min", 1e6, "s");
  if (us < 86400e6) return twoUnits(3600e6, "h", 60e6, "min");
  return twoUnits(86400e6, "d", 3600e6, "h");
}

const pad = (number) => String(number).padStart(2, "0");
function timeText(us) {
  const time = new Date(us / 1000);
  if (us <= 0 || isNaN(time)) return "-";
  const day = `${time.getFullYear()}-${pad(time.getMonth() + 1)}-${pad(time.getDate())}`;
  return `${day} ${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}`;
}
function dayText(days) {
  const time = new Date(days * 86400e3);
  return isNaN(time) ? "-" : time.toISOString().slice(0, 10);
}
const lookups = (counted) => counted.hits + counted.misses;
const rateText = (counted) =>
  lookups(counted) > 0 ? `${((100 * counted.hits) / lookups(counted)).toFixed(1)} %` : "-";
const percentOf = (part, whole) => `${whole > 0 ? Math.min(100, (100 * part) / whole) : 0}%`;

function sum(all) {
  const total = {};
  for (const counted of all) {
    for (const [name, count] of Object.entries(counted)) total[name] = (total[name] ?? 0) + count;
  }
  return total;
}
const counted = sum([
  { hits: 0, hits_memory: 0, misses: 0, bypassed: 0, stored: 0, run_us: 0, saved_us: 0 },
  ...data.days.map((day) => day.counted),
]);

function scopeCode(scope) {
  const letters = [...scope];
  const shown = letters.length > 24 ? letters.slice(0, 23).join("") + "…" : scope;
  return element("code", { title: scope }, shown);
}

function header() {
  const facts = [timeText(data.made_at_us)];
  if (data.is_pack) facts.push("a pack");
  if (data.mode) facts.push(`mode ${data.mode}`);
  if (data.processes) {
    facts.push(numberOf(data.processes, "process counts now", "processes count now"));
  }
  return element("header", {}, soft("modcache report"), element("h1", {}, data.path), soft(facts.join(" · ")));
}

function tiles() {
  const tile = (label, value, more) =>
    element(
      "div", {}, element("dt", {}, label),
      element("dd", {}, value, more ? element("small", { class: "soft" }, more) : null));
  const all = [];
  if (data.is_pack) {
    all.push(tile("Hit rate", "-", "a pack counts nothing"));
  } else if (Object.values(counted).every((count) => count === 0)) {
    all.push(tile("Hit rate", "-", "none counted yet"));
  } else {
    const since = data.since_us > 0 ? `since ${timeText(data.since_us).slice(0, 10)}` : "";
    all.push(
      tile("Hit rate", rateText(counted), `of ${numberOf(lookups(counted), "lookup", "lookups")}`),
      tile("Time saved", durationText(counted.saved_us), since),
      tile("Hits", countText(counted.hits), `${countText(counted.hits_memory)} in memory`),
      tile("Misses", countText(counted.misses), `ran ${durationText(counted.run_us)}`));
  }
  const entries = data.scopes.reduce((total, scope) => total + scope.entries, 0);
  all.push(
    tile("Entries", countText(entries), `in ${numberOf(data.scopes.length, "scope", "scopes")}`),
    tile("Size on disk", sizeText(data.files.used_bytes), data.is_pack ? "" : `of ${sizeText(data.budget_bytes)}`));
  return element("dl", { class: "tiles" }, all);
}

// Points of the charts: a day each, or a few where there are more than a chart has room for. Every
// day has a place, also those on which nothing was counted.
function points() {
  const [LEAST, MOST] = [14, 92];
  const days = data.days.map((day) => day.day);
  const end = Math.max(...days) + 1;
  const first = Math.min(...days, end - LEAST);
  const size = Math.ceil((end - first) / MOST);
  const made = [];
  for (let begin = first; begin < end; begin += size) {
    const last = Math.min(begin + size, end) - 1;
    const inside = data.days.filter(({ day }) => day >= begin && day <= last);
    made.push({
      date: dayText(begin),
      label: begin === last ? dayText(begin) : `${dayText(begin)} to ${dayText(last)}`,
      isCounted: inside.length > 0,
      counted: sum([{ hits: 0, misses: 0, bypassed: 0, stored: 0, saved_us: 0 }, ...inside.map((day) => day.counted)]),
    });
  }
  return made;
}

// An axis of two to five ticks at times that people count in.
function durationAxis(most) {
  const minute = 60e6;
  const steps = [
    ...[1, 10, 100, 1e3, 1e4, 1e5, 1e6].flatMap((ten) => [ten, 2 * ten, 5 * ten]), 10e6, 20e6,
    ...[1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7200].map((n) => n * minute)];
  let step = steps.find((each) => 4 * each >= most) ?? steps[steps.length - 1];
  while (4 * step < most) step *= 2;
  const count = Math.max(1, Math.ceil(most / step));
  const ticks = Array.from({ length: count + 1 }, (_, i) =>
    i === 0 ? "0" : durationText(i * step).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " "));
  return { top: count * step, ticks };
}

// `values` has a number for each point, or null where nothing is known; `told` what pointing at it
// says. A line has a gap where nothing is known.
function chart(title, summary, form, dates, values, told, axis) {
  const width = 100 * values.length;
  const height = (value) => 100 * (1 - Math.min(1, value / axis.top));
  const grid = axis.ticks.map((_, i) => `M0 ${100 * (1 - i / (axis.ticks.length - 1))}H${width}`);
  const known = values.map((value, i) => [i, value]).filter(([, value]) => value !== null);
  const drawn = [element("path", { class: "grid", d: grid.join("") })];
  if (form === "line") {
    const place = ([i, value]) => `${100 * i + 50} ${height(value)}`;
    const joined = (i) => i > 0 && values[i - 1] !== null;
    drawn.push(
      element("path", { class: "line", d: known.map((p) => (joined(p[0]) ? "L" : "M") + place(p)).join("") }),
      element("path", { class: "dots", d: known.map((p) => `M${place(p)}h0`).join("") }));
  } else {
    const bars = known.filter(([, value]) => value > 0);
    const bar = ([i, value]) => `M${100 * i + 10} 100V${height(value)}h80V100z`;
    drawn.push(element("path", { class: "bars", d: bars.map(bar).join("") }));
  }
  told.forEach((text, i) => {
    const place = { class: "at", x: 100 * i, y: 0, width: 100, height: 100 };
    drawn.push(element("rect", place, element("title", {}, text)));
  });
  const box = { role: "img", "aria-label": summary, preserveAspectRatio: "none", viewBox: `0 0 ${width} 100` };
  // The first, the middle and the last date: a telephone has no room for more.
  const shown = [dates[0], dates[Math.floor(dates.length / 2)], dates[dates.length - 1]];
  return element(
    "figure", { class: "chart" }, element("figcaption", {}, title),
    element("div", { class: "ticks", "aria-hidden": "true" }, [...axis.ticks].reverse().map(fact)),
    element("svg", box, drawn),
    element("div", { class: "dates", "aria-hidden": "true" }, shown.map(fact)));
}

function numbers(all) {
  const titles = ["Day (UTC)", "Hit rate", "Hits", "Misses", "Time saved", "Bypassed", "Stored"];
  const rows = all.filter((point) => point.isCounted).map(({ label, counted: c }) => [
    label, rateText(c), countText(c.hits), countText(c.misses), durationText(c.saved_us),
    countText(c.bypassed), countText(c.stored)]);
  const head = element("tr", {}, titles.map((title) => element("th", { scope: "col" }, title)));
  const body = rows.map((row) => element("tr", {}, row.map((cell) => element("td", {}, cell))));
  return element(
    "details", {}, element("summary", {}, "The numbers"),
    element("div", { class: "wide", tabindex: "0" },
      element("table", {}, element("thead", {}, head), element("tbody", {}, body))));
}

function overTime() {
  if (data.days.length === 0) return null;
  const all = points();
  const dates = all.map((point) => point.date);
  const rates = all.map(({ counted: c }) => (lookups(c) > 0 ? c.hits / lookups(c) : null));
  const rateTold = all.map(({ label, counted: c }) =>
    `${label}: ` + (lookups(c) > 0
      ? `${rateText(c)} of ${numberOf(lookups(c), "lookup", "lookups")}` : "no lookups"));
  const times = all.map((point) => point.counted.saved_us);
  const timeTold = all.map((p) => `${p.label}: ${durationText(p.counted.saved_us)} saved`);
  const percent = { top: 1, ticks: ["0 %", "25 %", "50 %", "75 %", "100 %"] };
  return section(
    "Over time",
    element("div", { class: "charts" },
      chart("Hit rate", `Hit rate by day, ${rateText(counted)} in total`, "line", dates, rates, rateTold, percent),
      chart("Time saved", `Time saved by day, ${durationText(counted.saved_us)} in total`, "bars", dates,
        times, timeTold, durationAxis(Math.max(1, ...times)))),
    numbers(all));
}

function sizes() {
  const scopes = data.scopes.filter((scope) => scope.entries > 0)
    .sort((a, b) => b.record_bytes - a.record_bytes || (a.scope < b.scope ? -1 : 1));
  if (scopes.length === 0) return section("Size by scope", soft("There are no entries."));
  const item = (scope) => {
    const facts = [fact(numberOf(scope.entries, "entry", "entries"))];
    if (scope.counted && lookups(scope.counted) > 0) {
      facts.push(" · ", fact(`${rateText(scope.counted)} hits`));
      facts.push(" · ", fact(`${durationText(scope.counted.saved_us)} saved`));
    }
    return element(
      "li", {},
      element("div", { class: "name" },
        element("span", {},
          scope.class ? [element("b", {}, scope.class), " "] : null, scopeCode(scope.scope),
          scope.namespace ? [" ", element("small", {}, `in ${scope.namespace}`)] : null),
        fact(sizeText(scope.record_bytes))),
      element("div", { class: "bar", "aria-hidden": "true" },
        element("i", { style: `width:${percentOf(scope.record_bytes, scopes[0].record_bytes)}` })),
      element("small", {}, facts));
  };
  const more = scopes.length - MAX_SHOWN;
  return section(
    "Size by scope", element("ul", { class: "sizes" }, scopes.slice(0, MAX_SHOWN).map(item)),
    more > 0 ? soft(`and ${numberOf(more, "smaller scope", "smaller scopes")}`) : null);
}

function budget() {
  if (data.is_pack) return null;
  const { used_bytes: used, segment_bytes: segments, index_bytes: index } = data.files;
  const records = data.scopes.reduce((total, scope) => total + scope.record_bytes, 0);
  const values = Math.min(segments, records);
  const free = Math.max(0, data.budget_bytes - used);
  const parts = [
    ["values", "entries", values],
    ["dead", "of no entry any more", segments - values],
    ["index", "database and index", index],
    ["other", "notes and others", used - segments - index],
    ["free", "left of the budget", free]];
  const over = used > data.budget_bytes ? ", which is more than it allows" : "";
  return section(
    "Budget", element("p", {}, `${sizeText(used)} of ${sizeText(data.budget_bytes)}${over}`),
    element("div", { class: "bar budget", "aria-hidden": "true" },
      parts.filter(([, , bytes]) => bytes > 0).map(([style, , bytes]) =>
        element("i", { class: style, style: `width:${percentOf(bytes, used + free)}` }))),
    element("ul", { class: "key" }, parts.map(([style, label, bytes]) =>
      element("li", {}, element("i", { class: style }), `${label} ${sizeText(bytes)}`))),
    soft(element("small", {}, "The budget is that of MODCACHE_DISK, or the default, where this page " +
      "was made; programs may set another.")));
}

function lineage() {
  const title = "Which scopes came from which";
  if (data.families.length === 0) return section(title, soft("No scope has anything on record."));
  const entries = new Map(data.scopes.map((s) => [JSON.stringify([s.namespace, s.scope]), s.entries]));
  const family = (one, number) => {
    const member = (scope, i) => {
      const count = entries.get(JSON.stringify([one.namespace, scope.scope])) ?? 0;
      const facts = [fact(timeText(scope.created_us)), " · ", fact(numberOf(count, "entry", "entries"))];
      const origin = scope.parent === i
        ? soft("the first on record")
        : soft("from ", element("a", { href: `#s${number}-${scope.parent}` },
          scopeCode(one.members[scope.parent].scope)), `: ${scope.changes || "nothing on record differs"}`);
      return element("li", { id: `s${number}-${i}` },
        element("p", {}, scopeCode(scope.scope), " ", element("small", {}, facts)), origin);
    };
    const name = element("h3", {}, one.class || "unnamed");
    if (one.method && one.method !== "forward") name.append(" ", element("span", { class: "soft" }, `.${one.method}`));
    if (one.namespace) name.append(" ", element("span", { class: "soft" }, `in ${one.namespace}`));
    const older = one.left_out;
    return [
      name, element("ol", { class: "came" }, one.members.map(member)),
      older > 0 ? soft(`${numberOf(older, "older one is", "older ones are")} left out`) : null];
  };
  const more = data.families.length - MAX_SHOWN;
  return section(
    title, data.families.slice(0, MAX_SHOWN).map(family),
    more > 0 ? soft(`and ${numberOf(more, "class or function", "classes and functions")} without newer scopes`) : null);
}

document.title = `modcache: ${data.path}`;
document.querySelector("main").append(
  ...[header(), tiles(), overTime(), sizes(), budget(), lineage()].filter((part) => part !== null),
  element("footer", {}, `Made by modcache ${data.version}. This page loads nothing.`));
