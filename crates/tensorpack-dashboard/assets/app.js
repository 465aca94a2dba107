// The frame of the page: views, the list of runs, colors, and the questions to the server.

import { chartToolbar, debugCharts, highlight, redraw, settled, showCharts, zoom } from "./charts.js";
import { showGraph } from "./graph.js";
import {
  $, announce, assignColors, changed, colorOf, el, formatAge, formatX, getJson, matches, onChange, post, readAddress,
  selectedIds, server, set, shownRuns, ui,
} from "./state.js";
import { showConfiguration, showHistograms, showImages, showLog, showTable, statusChip, timeBars } from "./tabs.js";

const any = (field) => () => server.runs.some((run) => run[field]);
const VIEWS = [
  ["charts", "Charts"], ["system", "System"], ["table", "Table"], ["configuration", "Configuration"],
  ["images", "Images", any("images")], ["histograms", "Histograms", any("histograms")],
  ["graph", "Graph", any("graph")], ["log", "Log"],
];

// Views.

function drawTabs() {
  const shown = VIEWS.filter(([, , needed]) => !needed || needed());
  const key = shown.map(([name]) => name).join() + ui.tab;
  if ($("tabs").dataset.key === key) return;
  $("tabs").dataset.key = key;
  const focused = document.activeElement?.dataset?.tab;
  const buttons = shown.map(([name, title]) =>
    el("button.tab", {
      role: "tab", id: `tab-${name}`, "data-tab": name, "aria-selected": ui.tab === name, "aria-controls": "view",
      tabIndex: ui.tab === name ? 0 : -1, onclick: () => set({ tab: name }),
    }, title));
  $("tabs").replaceChildren(...buttons);
  $("view").setAttribute("aria-labelledby", `tab-${ui.tab}`);
  if (focused) $(`tab-${ui.tab}`)?.focus();
  $(`tab-${ui.tab}`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

$("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const tabs = [...$("tabs").children];
  const at = tabs.findIndex((tab) => tab.dataset.tab === ui.tab);
  set({ tab: tabs[(at + step + tabs.length) % tabs.length].dataset.tab });
  event.preventDefault();
});

let shownTab = "";
function drawView() {
  const view = $("view");
  if (shownTab !== ui.tab) {
    shownTab = ui.tab;
    view.replaceChildren();
    view.dataset.key = "";
    $("tooltip").hidden = true;
    const hasCharts = ui.tab === "charts" || ui.tab === "system";
    const toolbar = hasCharts ? chartToolbar() : plainToolbar();
    $("toolbar").replaceChildren(...(toolbar ? [toolbar] : []));
    $("toolbar").hidden = !toolbar;
  }
  $("toolbar").firstChild?.refresh?.();
  const again = changed;
  switch (ui.tab) {
    case "system": return drawSystem(view, again);
    case "table": return showTable(view, again);
    case "configuration": return showConfiguration(view, again);
    case "images": return showImages(view, again);
    case "histograms": return showHistograms(view, again);
    case "graph": return showGraph(view);
    case "log": return showLog(view, again);
    default: return showCharts(view, false);
  }
}

/** A search field for the views that have nothing else. */
function plainToolbar() {
  const words = { table: "Search statistics", configuration: "Search entries", images: "Search images",
    histograms: "Search histograms" }[ui.tab];
  if (!words) return null;
  const search = el("input.search", {
    type: "search", id: "search", placeholder: words, "aria-label": words, value: ui.q, autocomplete: "off",
    oninput: () => set({ q: search.value }),
  });
  return el(".tools", {}, search);
}

function drawSystem(view, again) {
  if (!view.charts) [view.bars, view.charts] = [el("div"), el("div")];
  if (!view.contains(view.charts)) view.replaceChildren(view.bars, view.charts);
  const bars = timeBars(again);
  view.bars.replaceChildren(...(bars ? [bars] : []));
  showCharts(view.charts, true);
}

// Runs.

const rows = new Map();

function drawRuns() {
  const selected = selectedIds();
  const shown = server.runs.filter((run) => matches(run.name, ui.f));
  for (const run of shown) {
    if (!rows.has(run.id)) rows.set(run.id, createRow(run));
    rows.get(run.id).update(run, selected.has(run.id));
  }
  const list = $("runs");
  const elements = shown.map((run) => rows.get(run.id).element);
  const same = list.children.length === elements.length && elements.every((e, i) => list.children[i] === e);
  if (!same) list.replaceChildren(...elements);
  const count = shownRuns().length;
  $("run-count").textContent = server.runs.length ? `${count} of ${server.runs.length}` : "";
  $("open-runs").textContent = `Runs (${count})`;
  if (server.loaded && !shown.length) {
    list.replaceChildren(el("li.empty", {}, server.runs.length ? "No run matches." : "No runs yet."));
  }
  // The last part of a path says enough, and the rest is the business of nobody who looks over a shoulder.
  $("folders").textContent = server.folders.map((path) => path.split(/[\\/]/).at(-1) || path).join("\n");
  $("folders").title = server.folders.join("\n");
}

function createRow(run) {
  const box = el("input", { type: "checkbox", onchange: () => toggle(run.id, box.checked) });
  const swatch = el("span.swatch");
  const name = el("button.run-name", { title: `${run.name}: show only this run`, onclick: () => solo(run.id) }, run.name);
  const note = el("span.run-note");
  const status = el("span.run-status");
  const stop = el("button.text-button.stop", { onclick: () => stopRun(run) }, "Stop");
  stop.setAttribute("aria-label", `Stop ${run.name}`);
  box.setAttribute("aria-label", `Show ${run.name}`);
  const element = el("li.run", {
    "data-run": run.id,
    onpointerenter: () => highlight(run.id), onpointerleave: () => highlight(null),
    onfocusin: () => highlight(run.id), onfocusout: () => highlight(null),
  }, el("label.check", {}, box, swatch), el(".run-text", {}, name, el(".run-line", {}, status, note)), stop);
  const update = (run, on) => {
    box.checked = on;
    element.classList.toggle("off", !on);
    swatch.style.setProperty("--color", colorOf(run.id));
    const chip = statusChip(run);
    if (status.textContent !== chip.textContent) status.replaceChildren(chip);
    const where = run.step ? `epoch ${run.epoch} · step ${formatX(run.step, "step")}` : "";
    const age = run.status === "running" ? "" : formatAge(run.changed);
    const damaged = run.damaged ? `${run.damaged} damaged lines` : "";
    const text = [where, damaged].filter(Boolean).join(" · ");
    if (note.textContent !== text) note.textContent = text;
    note.title = [text, age && `last change ${age}`].filter(Boolean).join(", ");
    element.dataset.status = run.status;
    stop.hidden = !(server.control && run.status === "running");
  };
  return { element, update };
}

function toggle(id, on) {
  const ids = selectedIds();
  if (on) ids.add(id);
  else ids.delete(id);
  choose(ids);
}

/** Shows only one run, or all again if it is the only one. */
function solo(id) {
  const shown = shownRuns();
  if (shown.length === 1 && shown[0].id === id) set({ runs: "all" });
  else choose(new Set([id]));
}

function choose(ids) {
  const here = server.runs.filter((run) => ids.has(run.id)).map((run) => run.id);
  // An empty text means that the user has not chosen.
  set({ runs: here.length === server.runs.length ? "all" : here.join() || "none" });
}

$("select-all").addEventListener("click", () => {
  const ids = selectedIds();
  server.runs.filter((run) => matches(run.name, ui.f)).forEach((run) => ids.add(run.id));
  choose(ids);
});
$("select-none").addEventListener("click", () => {
  const ids = selectedIds();
  server.runs.filter((run) => matches(run.name, ui.f)).forEach((run) => ids.delete(run.id));
  choose(ids);
});
$("run-filter").addEventListener("input", () => set({ f: $("run-filter").value }));
$("open-runs").addEventListener("click", () => {
  $("layout").classList.add("runs-open");
  $("run-filter").focus();
});
$("close-runs").addEventListener("click", () => $("layout").classList.remove("runs-open"));

async function stopRun(run) {
  $("confirm-title").textContent = "Stop this run?";
  $("confirm-text").textContent =
    `${run.name} finishes its step, saves a checkpoint and ends. The same command resumes it.`;
  const dialog = $("confirm");
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (dialog.returnValue !== "yes") return;
  try {
    await post("/api/stop", { run: run.id });
    announce(`${run.name} was asked to stop`);
  } catch (error) {
    $("live").textContent = error.message;
  }
}

// Colors.

const system = matchMedia("(prefers-color-scheme: dark)");
const THEMES = ["system", "light", "dark"];
let theme = "system";
try {
  theme = localStorage.getItem("theme") ?? "system";
} catch {
  // Storage is disabled.
}

function applyTheme() {
  const dark = theme === "dark" || (theme === "system" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = { system: "◐", light: "☀", dark: "☾" }[theme];
  $("theme").setAttribute("aria-label", `Colors: ${theme}`);
  drawRuns();
  redraw();
  changed();
}

function nextTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // Storage is disabled.
  }
  applyTheme();
  announce(`Colors: ${theme}`);
}
system.addEventListener("change", applyTheme);
$("theme").addEventListener("click", nextTheme);

// Keys.

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    $("layout").classList.remove("runs-open");
    if (!document.querySelector("dialog[open]") && ui.from !== "") zoom(null);
  }
  if (event.target.matches("input:not([type=checkbox]):not([type=radio]):not([type=range]), select, textarea")) return;
  const number = Number(event.key);
  if (event.key === "/") $("search")?.focus();
  else if (event.key === "f") $("run-filter").focus();
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") $("help").showModal();
  else if (number >= 1 && number <= $("tabs").children.length) set({ tab: $("tabs").children[number - 1].dataset.tab });
  else return;
  event.preventDefault();
});
$("help-button").addEventListener("click", () => $("help").showModal());
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});

// The server.

const POLL = 1500;
async function poll() {
  try {
    const answer = await getJson("/api/runs", { revision: server.revision });
    if (answer.runs) {
      Object.assign(server, answer, { loaded: true });
      assignColors();
      changed();
    } else if (ui.tab === "log") {
      changed();
    }
    // Requests that failed meanwhile are sent again.
    if ($("live").dataset.state === "lost") changed();
    const running = server.runs.filter((run) => run.status === "running").length;
    $("live").dataset.state = running ? "running" : "idle";
    const text = !server.runs.length ? "waiting for runs" : running ? `${running} running` : "idle";
    if ($("live").textContent !== text) $("live").textContent = text;
  } catch (error) {
    $("live").dataset.state = "lost";
    $("live").textContent = "the server does not answer";
  }
  const reading = server.runs.some((run) => !run.complete);
  // A hidden page asks less often.
  setTimeout(poll, document.hidden ? 10 * POLL : reading ? POLL / 4 : POLL);
}

onChange(() => {
  drawTabs();
  drawRuns();
  drawView();
});
addEventListener("hashchange", () => {
  shownTab = "";
  readAddress();
});
document.addEventListener("visibilitychange", () => document.hidden || changed());
readAddress();
$("run-filter").value = ui.f;
applyTheme();
poll();
window.dashboard = { charts: debugCharts, settled, server, ui };
