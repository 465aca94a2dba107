// What the page knows: the runs of the server, and what the user chose, which the address keeps.

/** The state that the address keeps. */
const DEFAULTS = {
  tab: "charts", x: "step", xlog: "", ylog: "", clip: "", smooth: "0.6", q: "", f: "", runs: "", pins: "",
  from: "", to: "", run: "", scope: "", diff: "", closed: "",
};

export const ui = { ...DEFAULTS };
export const server = { revision: "", runs: [], tags: [], control: false, folders: [], loaded: false };

const listeners = new Set();

/** Calls `listener` after every change. */
export function onChange(listener) {
  listeners.add(listener);
}

let scheduled = false;
/** Tells everyone that something has changed, once per frame. */
export function changed() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    listeners.forEach((listener) => listener());
  });
}

/** Changes the state, and the address with it. */
export function set(values) {
  Object.assign(ui, values);
  const kept = new URLSearchParams();
  for (const [name, value] of Object.entries(ui)) {
    if (value !== DEFAULTS[name]) kept.set(name, value);
  }
  history.replaceState(null, "", "#" + kept.toString());
  changed();
}

/** Reads the state from the address. */
export function readAddress() {
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(DEFAULTS)) ui[name] = kept.get(name) ?? DEFAULTS[name];
  changed();
}

/** Runs that are shown when the user has not chosen any. */
const DEFAULT_RUNS = 12;

/** Returns the ids of the runs that are shown. */
export function selectedIds() {
  const ids = server.runs.map((run) => run.id);
  if (ui.runs === "all") return new Set(ids);
  if (ui.runs) return new Set(ui.runs.split(","));
  const newest = [...server.runs].sort((a, b) => b.started - a.started || (a.name < b.name ? -1 : 1));
  return new Set(newest.slice(0, DEFAULT_RUNS).map((run) => run.id));
}

/** Returns the runs that are shown: selected, and not hidden by the filter. */
export function shownRuns() {
  const ids = selectedIds();
  return server.runs.filter((run) => ids.has(run.id) && matches(run.name, ui.f));
}

/** Returns the run of the views that show one: the chosen one, or the first that fits. */
export function focusRun(fits) {
  const runs = shownRuns().filter(fits);
  return runs.find((run) => run.id === ui.run) ?? runs[0];
}

/** Tests a name with a filter: a regular expression, or plain text if it is none. */
export function matches(name, filter) {
  if (!filter) return true;
  try {
    return new RegExp(filter, "i").test(name);
  } catch {
    return name.toLowerCase().includes(filter.toLowerCase());
  }
}

/** Fetches JSON. */
export async function getJson(path, parameters = {}) {
  const response = await fetch(path + "?" + new URLSearchParams(parameters), { credentials: "same-origin" });
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

/** Sends a change. */
export async function post(path, body) {
  const options = {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    credentials: "same-origin",
  };
  const response = await fetch(path, options);
  if (!response.ok) throw new Error((await response.text()).trim());
}

/** Creates an element. `properties` are its properties; those that begin with `aria-`, `data-` or
 * are `role` are attributes, and those that begin with `on` are listeners. */
export function el(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  element.classList.add(...classes);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.includes("-") || key === "role" || key === "for") element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const $ = (id) => document.getElementById(id);

/** Says something to people who do not see the page. */
export function announce(text) {
  $("announce").textContent = text;
}

// Colors.

const LIGHT = ["#2f62d9", "#d9480f", "#2b8a3e", "#9c36b5", "#0b7285", "#c2255c", "#a06a00", "#5f3dc4", "#4d6478", "#8a5a44"];
const DARK = ["#79a9ff", "#ff9a52", "#69db7c", "#dd8bf5", "#4fd1e0", "#f88fb4", "#f2c94c", "#a78bfa", "#a9b8c6", "#d7a58d"];

let colorIndex = {};
try {
  colorIndex = JSON.parse(localStorage.getItem("colors")) ?? {};
} catch {
  // Storage is disabled: colors are stable for as long as the page is open.
}

/** Gives every new run the first free color, and keeps it. */
export function assignColors() {
  const here = new Set(server.runs.map((run) => run.id));
  const used = new Set(Object.entries(colorIndex).filter(([id]) => here.has(id)).map(([, index]) => index));
  const fresh = server.runs.filter((run) => !(run.id in colorIndex));
  fresh.sort((a, b) => a.started - b.started || (a.name < b.name ? -1 : 1));
  let next = 0;
  for (const run of fresh) {
    while (used.has(next)) next++;
    used.add(next);
    colorIndex[run.id] = next;
  }
  if (fresh.length) {
    try {
      localStorage.setItem("colors", JSON.stringify(colorIndex));
    } catch {
      // See above.
    }
  }
}

export function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

/** Returns the color of a run. */
export function colorOf(id) {
  const index = colorIndex[id] ?? 0;
  const palette = isDark() ? DARK : LIGHT;
  if (index < palette.length) return palette[index];
  const hue = (index * 137.508) % 360;
  const light = (isDark() ? 68 : 40) + ((index * 7) % 10) - 5;
  return `hsl(${hue.toFixed(0)} 60% ${light}%)`;
}

/** Returns a color of the style sheet. */
export function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Numbers.

/** Formats a value for people. */
export function format(value, digits = 4) {
  if (typeof value !== "number") return String(value ?? "");
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) {
    return value.toExponential(Math.max(0, digits - 2)).replace(/\.?0+e/, "e").replace("e+", "e").replace("-", "−");
  }
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

/** Formats a position on the x axis. */
export function formatX(value, axis = ui.x) {
  if (axis === "time") return formatSeconds(value);
  if (axis === "epoch") return String(Number(value.toFixed(3)));
  return Math.round(value).toLocaleString("en-US");
}

/** Formats a duration. */
export function formatSeconds(seconds) {
  if (seconds < 100) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds < 6000) return `${Math.round(seconds / 6) / 10} min`;
  if (seconds < 172800) return `${Math.round(seconds / 360) / 10} h`;
  return `${Math.round(seconds / 8640) / 10} d`;
}

/** Formats a time in the past. */
export function formatAge(since) {
  if (!since) return "";
  const seconds = Math.max(0, Date.now() / 1000 - since);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/** Returns whether small values of a statistic are good (-1), or large ones (1), or neither (0). */
export function direction(tag) {
  if (/(^|[^a-z])(cost|loss|error|perplexity)/i.test(tag)) return -1;
  if (/accuracy|precision|score|recall/i.test(tag)) return 1;
  return 0;
}
