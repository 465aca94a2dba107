// The views of charts: groups of cards, each with one statistic.

import { Chart } from "./chart.js";
import { announce, el, formatX, isDark, matches, server, set, shownRuns, ui } from "./state.js";

/** The cards by statistic. They are kept while the page is open, so that scrolling back is instant. */
const cards = new Map();
const visible = new Set();

const observer = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const card = entry.target.card;
      if (entry.isIntersecting) visible.add(card);
      else visible.delete(card);
      if (entry.isIntersecting) card.update();
    }
  },
  { rootMargin: "200px" },
);

const resizes = new ResizeObserver((entries) => {
  for (const entry of entries) entry.target.card?.resized();
});

/** The requests that run, so that a slow server does not collect them. */
let running = 0;
const waiting = [];
async function limited(task) {
  if (running >= 4) await new Promise((resolve) => waiting.push(resolve));
  running++;
  try {
    return await task();
  } finally {
    running--;
    waiting.shift()?.();
  }
}

/** Reads the answer of `/api/curves`. */
function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  const take = (n) => {
    const values = new Float64Array(buffer, at, n);
    at += 8 * n;
    return values;
  };
  return header.map((c) => ({
    run: c.run, total: c.total, bad: c.bad,
    rawX: take(c.raw), rawY: take(c.raw), smoothX: take(c.smooth), smoothY: take(c.smooth),
  }));
}

class Card {
  constructor(tag) {
    this.tag = tag;
    this.chart = new Chart(tag, zoom, () => this.pin());
    this.pinButton = el("button.icon-button.small", { title: "Pin (p)", onclick: () => this.pin() });
    this.wideButton = el(
      "button.icon-button.small",
      { title: "Widen", "aria-label": `Widen the chart of ${tag}`, onclick: () => this.widen() },
      "⤢",
    );
    this.title = el("h3", { title: tag }, tag);
    this.element = el(
      "article.card",
      { "data-tag": tag },
      el(".card-head", {}, this.title, this.pinButton, this.wideButton),
      this.chart.element,
    );
    this.element.card = this;
    this.chart.element.card = this;
    // What the user sets is exact; its average would only lag behind.
    this.isSetting = /(^|\/)(learning_rate|lr|momentum|weight_decay|loss_scale)$/.test(tag);
    /** The curves by run, each with the revision of the run it was computed from. */
    this.curves = new Map();
    this.busy = false;
    observer.observe(this.element);
    resizes.observe(this.chart.element);
    this.showPin();
  }

  /** Leaves out of the title what the title of the group says. */
  setGroup(group) {
    const name = group && this.tag.startsWith(group + "/") ? this.tag.slice(group.length + 1) : this.tag;
    this.title.textContent = name || this.tag || "(no name)";
  }

  pin() {
    const pins = pinned();
    if (pins.has(this.tag)) pins.delete(this.tag);
    else pins.add(this.tag);
    announce(pins.has(this.tag) ? `${this.tag} is pinned` : `${this.tag} is no longer pinned`);
    set({ pins: [...pins].join("|") });
  }

  widen() {
    const wide = this.element.classList.toggle("wide");
    this.wideButton.setAttribute("aria-pressed", wide);
  }

  showPin() {
    const is = pinned().has(this.tag);
    this.pinButton.textContent = is ? "★" : "☆";
    this.pinButton.classList.toggle("on", is);
    this.pinButton.setAttribute("aria-pressed", is);
    this.pinButton.setAttribute("aria-label", `Pin the chart of ${this.tag}`);
  }

  resized() {
    this.chart.draw();
    if (visible.has(this)) this.update();
  }

  /** Fetches the curves if anything that they depend on has changed. */
  async update() {
    this.showPin();
    const width = Math.round(this.chart.element.clientWidth);
    if (!width) return;
    const tag = server.tags.indexOf(this.tag);
    const runs = shownRuns().filter((run) => run.tags.includes(tag));
    const view = [width, ui.x, ui.xlog, ui.smooth, ui.from, ui.to].join();
    if (view !== this.view) {
      this.view = view;
      this.curves.clear();
    }
    const shown = runs.map((run) => run.id).join();
    const look = [shown, ui.ylog, ui.clip, isDark()].join();
    // Only the curves that have changed are fetched.
    const wanted = runs.filter((run) => this.curves.get(run.id)?.revision !== run.revision);
    if (this.busy) return;
    if (!wanted.length) {
      if (look !== this.look) this.show(runs, look);
      return;
    }
    this.busy = true;
    const smooth = this.isSetting ? "0" : ui.smooth;
    const parameters = { tag: this.tag, runs: wanted.map((run) => run.id).join(), x: ui.x, width, smooth };
    if (ui.xlog) parameters.xlog = 1;
    if (ui.from !== "") Object.assign(parameters, { from: ui.from, to: ui.to });
    let curves = null;
    try {
      curves = await limited(async () => {
        const response = await fetch("/api/curves?" + new URLSearchParams(parameters), { credentials: "same-origin" });
        return response.ok ? decode(await response.arrayBuffer()) : null;
      });
    } catch {
      // The server is gone; the status line says so.
    }
    this.busy = false;
    // The next change asks again.
    if (!curves) return;
    if (view === this.view) {
      const found = new Map(curves.map((c) => [c.run, c]));
      for (const run of wanted) this.curves.set(run.id, { revision: run.revision, curve: found.get(run.id) });
      this.show(runs, look);
    }
    // What was chosen meanwhile.
    if (visible.has(this)) this.update();
  }

  /** Draws the curves of some runs. `look` is what the drawing depends on besides. */
  show(runs, look) {
    this.look = look;
    const curves = runs.map((run) => this.curves.get(run.id)?.curve).filter(Boolean);
    this.chart.setCurves(curves);
    this.element.dataset.points = curves.reduce((sum, c) => sum + c.total, 0);
  }
}

function pinned() {
  return new Set(ui.pins ? ui.pins.split("|") : []);
}

/** Splits a statistic into its group and the rest. */
function split(tag) {
  const at = tag.indexOf("/");
  return at > 0 ? [tag.slice(0, at), tag.slice(at + 1)] : ["", tag];
}

/** Zooms all charts, or shows everything again. */
export function zoom(from, to) {
  if (from === null) set({ from: "", to: "" });
  else set({ from: String(from), to: String(to) });
}

const TITLES = { "": "Statistics", steps: "Per step", timing: "Timing", time: "Where the time goes" };
const ORDER = ["steps", ""];

const isSystem = (tag) => tag.startsWith("timing/") || tag.startsWith("time/");

/** Shows the charts of training statistics, or those of the system. */
export function showCharts(view, system) {
  const shown = shownRuns();
  const used = new Set(shown.flatMap((run) => run.tags));
  const tags = server.tags.filter((tag, i) => used.has(i) && isSystem(tag) === system && matches(tag, ui.q)).sort();
  const groups = new Map();
  const pins = pinned();
  const pinnedTags = tags.filter((tag) => pins.has(tag));
  if (pinnedTags.length) groups.set("pinned", pinnedTags);
  // A prefix that only one statistic has makes no group.
  const prefixes = new Map();
  for (const tag of tags) prefixes.set(split(tag)[0], (prefixes.get(split(tag)[0]) ?? 0) + 1);
  const keyed = tags.filter((tag) => !pins.has(tag)).map((tag) => {
    const prefix = split(tag)[0];
    return [prefixes.get(prefix) > 1 || Object.hasOwn(TITLES, prefix) ? prefix : "", tag];
  });
  const rank = (prefix) => (ORDER.includes(prefix) ? ORDER.indexOf(prefix) : ORDER.length);
  keyed.sort((a, b) => rank(a[0]) - rank(b[0]) || (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0));
  for (const [group, tag] of keyed) groups.set(group, [...(groups.get(group) ?? []), tag]);

  const key = JSON.stringify([...groups]);
  if (view.dataset.key !== key) {
    view.dataset.key = key;
    const sections = [...groups].map(([group, tags]) => section(group, tags));
    view.replaceChildren(...sections);
    if (!sections.length) view.append(empty(system));
  }
  for (const card of visible) card.update();
}

function section(group, tags) {
  const closed = new Set(ui.closed.split("|"));
  const title = group === "pinned" ? "Pinned" : Object.hasOwn(TITLES, group) ? TITLES[group] : group;
  const details = el(
    "details.group",
    { open: !closed.has(group + "/") },
    el("summary", {}, el("h2", {}, title), el("span.count", {}, String(tags.length))),
    el(".grid", {}, ...tags.map((tag) => card(tag, group).element)),
  );
  details.addEventListener("toggle", () => {
    const closed = new Set(ui.closed ? ui.closed.split("|") : []);
    // A group that is created open fires this event, too.
    if (details.open !== closed.has(group + "/")) return;
    if (details.open) closed.delete(group + "/");
    else closed.add(group + "/");
    set({ closed: [...closed].join("|") });
  });
  return details;
}

function card(tag, group) {
  if (!cards.has(tag)) cards.set(tag, new Card(tag));
  cards.get(tag).setGroup(group);
  return cards.get(tag);
}

function empty(system) {
  let text = "No statistic matches the search.";
  if (!server.loaded) text = "Loading runs …";
  else if (!server.runs.length) text = "No runs yet. They appear here as soon as training writes to the folder.";
  else if (!shownRuns().length) text = "No run is selected.";
  else if (!ui.q) text = system ? "These runs have no timing statistics yet." : "These runs have no statistics yet.";
  return el("p.empty", {}, text);
}

/** Draws one run above the others. */
export function highlight(id) {
  for (const card of visible) {
    if (card.chart.highlighted !== id) {
      card.chart.highlighted = id;
      card.chart.draw();
    }
  }
}

/** Draws everything again, after the colors have changed. */
export function redraw() {
  for (const card of visible) card.chart.draw();
}

/** Whether no visible chart waits for its curves. */
export function settled() {
  return [...visible].every((card) => !card.busy);
}

/** What tests read: the curves of each chart. */
export function debugCharts() {
  return Object.fromEntries([...cards].map(([tag, card]) => [tag, card.chart]));
}

/** The toolbar of the charts. */
export function chartToolbar() {
  const search = el("input.search", {
    type: "search", id: "search", placeholder: "Search statistics", value: ui.q, autocomplete: "off",
    "aria-label": "Search statistics", oninput: () => set({ q: search.value }),
  });
  const axis = el("div.segments", { role: "radiogroup", "aria-label": "Horizontal axis" });
  for (const x of ["step", "epoch", "time"]) {
    const input = el("input", {
      type: "radio", name: "x", value: x, checked: ui.x === x,
      // A range of steps means nothing in epochs.
      onchange: () => set({ x, from: "", to: "" }),
    });
    axis.append(el("label", {}, input, el("span", {}, x[0].toUpperCase() + x.slice(1))));
  }
  const toggle = (name, label, title) => {
    const input = el("input", {
      type: "checkbox", checked: ui[name] === "1", onchange: () => set({ [name]: input.checked ? "1" : "" }),
    });
    return el("label.toggle", { title }, input, el("span", {}, label));
  };
  const value = el("output", {}, Number(ui.smooth).toFixed(2));
  const slider = el("input", {
    type: "range", min: "0", max: "0.99", step: "0.01", value: ui.smooth, "aria-label": "Smoothing",
    oninput: () => {
      value.textContent = Number(slider.value).toFixed(2);
      clearTimeout(slider.timer);
      slider.timer = setTimeout(() => set({ smooth: String(Number(slider.value)) }), 60);
    },
  });
  const reset = el("button.chip", { id: "reset-zoom", hidden: ui.from === "", onclick: () => zoom(null) });
  const showReset = () => {
    reset.hidden = ui.from === "";
    reset.textContent = `${ui.x} ${formatX(Number(ui.from))} – ${formatX(Number(ui.to))}  ✕`;
    reset.setAttribute("aria-label", "Reset the zoom");
  };
  showReset();
  const bar = el(
    ".tools",
    {},
    search, axis,
    el("label.slider", {}, el("span", {}, "Smoothing"), slider, value),
    toggle("ylog", "Log y", "Logarithmic vertical axis"),
    toggle("xlog", "Log x", "Logarithmic horizontal axis"),
    toggle("clip", "Clip outliers", "Fit the vertical axis to all but the outer 2 % of the values"),
    reset,
  );
  bar.refresh = showReset;
  return bar;
}
