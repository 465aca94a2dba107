// The views other than charts: the table of best values, configuration, images, histograms, the log.

import {
  $, announce, colorOf, cssColor, direction, el, focusRun, format, formatX, getJson, matches, post, server, set,
  shownRuns, ui,
} from "./state.js";

/** The name of a run with its color. */
export function runLabel(run) {
  const dot = el("span.dot");
  dot.style.background = colorOf(run.id);
  return el("span.run-label", { title: run.name }, dot, run.name);
}

/** Fetches what a view shows if anything has changed since, and keeps it. */
function cached() {
  let [key, value, pending] = ["", null, false];
  return (wanted, load, done) => {
    if (wanted === key || pending) return value;
    pending = true;
    load()
      .then((loaded) => ([key, value] = [wanted, loaded]))
      .catch(() => (key = ""))
      .finally(() => {
        pending = false;
        done();
      });
    return value;
  };
}

const ids = (runs) => runs.map((run) => run.id).join();
const revisions = (runs) => runs.map((run) => `${run.id}.${run.revision}`).join();

// The table.

const tableData = cached();
let sorting = { tag: "", up: true };

/** Shows the best and last values of all statistics. */
export function showTable(view, again) {
  const runs = shownRuns();
  const table = tableData(revisions(runs), () => getJson("/api/table", { runs: ids(runs) }), again);
  if (!table) return view.replaceChildren(el("p.empty", {}, "Loading …"));
  const isShown = (tag) => !/^(timing|time|steps)\//.test(tag) && matches(tag, ui.q);
  const tags = [...new Set(runs.flatMap((run) => Object.keys(table[run.id] ?? {})))].filter(isShown).sort();
  const best = (run, tag) => {
    const cell = table[run.id]?.[tag];
    const d = direction(tag);
    // A statistic that was never finite has no best value.
    return cell && ((d < 0 ? cell.min : d > 0 ? cell.max : null) ?? cell.last);
  };
  const winners = new Map();
  for (const tag of tags) {
    const values = runs.map((run) => best(run, tag)?.[1]).filter((v) => typeof v === "number");
    if (direction(tag) && runs.length > 1) winners.set(tag, (direction(tag) < 0 ? Math.min : Math.max)(...values));
  }
  const rows = [...runs];
  if (sorting.tag) {
    // What is missing or not a number comes last in either order.
    const value = (run) => Number(best(run, sorting.tag)?.[1] ?? NaN);
    const order = (a, b) => (Number.isNaN(a) || Number.isNaN(b) ? Number.isNaN(a) - Number.isNaN(b)
      : (sorting.up ? 1 : -1) * (a - b || 0));
    rows.sort((a, b) => order(value(a), value(b)));
  }
  const head = tags.map((tag) => {
    const sorted = sorting.tag === tag;
    const sort = () => {
      sorting = { tag, up: sorted ? !sorting.up : direction(tag) <= 0 };
      again();
    };
    const what = direction(tag) < 0 ? "lowest" : direction(tag) > 0 ? "highest" : "last";
    const arrow = sorted ? (sorting.up ? " ↑" : " ↓") : "";
    return el(
      "th",
      { scope: "col", "aria-sort": sorted ? (sorting.up ? "ascending" : "descending") : "none" },
      el("button.sort", { onclick: sort }, tag + arrow),
      el("span.faint", {}, what),
    );
  });
  const body = rows.map((run) => {
    const cells = tags.map((tag) => {
      const cell = best(run, tag);
      if (!cell) return el("td.number.faint", {}, "–");
      const [step, value] = cell;
      const won = winners.get(tag) === value;
      const last = table[run.id][tag].last[1];
      const note = direction(tag) ? `at ${formatX(step, "step")}, now ${format(last)}` : `at ${formatX(step, "step")}`;
      return el(
        won ? "td.number.won" : "td.number",
        { "data-value": value, "data-tag": tag, title: String(value) },
        el("span", {}, (won ? "★ " : "") + format(value, 5)),
        el("span.faint", {}, note),
      );
    });
    const state = el("td", {}, statusChip(run));
    return el("tr", {}, el("th", { scope: "row" }, runLabel(run)), state, ...cells);
  });
  const first = [el("th", { scope: "col" }, "Run"), el("th", { scope: "col" }, "Status")];
  view.replaceChildren(
    runs.length
      ? el(".scroll", { tabIndex: 0, role: "region", "aria-label": "Best values" },
          el("table.data", {}, el("thead", {}, el("tr", {}, ...first, ...head)), el("tbody", {}, ...body)))
      : el("p.empty", {}, "No run is selected."),
  );
}

/** The status of a run, as a word and a color. */
export function statusChip(run) {
  return el("span.status", { "data-status": run.status }, run.complete ? run.status : "reading");
}

// Configuration.

const detailData = cached();
const MAX_COMPARED = 16;

/** Shows settings, hyper-parameters and manifests side by side. */
export function showConfiguration(view, again) {
  const runs = shownRuns().slice(0, MAX_COMPARED);
  const loaded = detailData(revisions(runs), () => getJson("/api/details", { runs: ids(runs) }), again);
  if (!loaded) return view.replaceChildren(el("p.empty", {}, "Loading …"));
  // The user may be typing into the controls.
  if (view.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox])")) return;
  const value = (run, key) => loaded[run.id]?.details[key];
  const keys = [...new Set(runs.flatMap((run) => Object.keys(loaded[run.id]?.details ?? {})))];
  // These differ between any two runs.
  const isMoment = (key) => /^(time|host\/(process|available_memory))$/.test(key);
  const differs = (key) => !isMoment(key) && new Set(runs.map((run) => JSON.stringify(value(run, key)))).size > 1;
  const only = el("input", {
    type: "checkbox", checked: ui.diff === "1", onchange: () => set({ diff: only.checked ? "1" : "" }),
  });
  const shown = keys.filter((key) => matches(key, ui.q) && (ui.diff !== "1" || differs(key)));
  const rows = shown.map((key) => {
    const differ = differs(key);
    const mark = differ ? el("span.mark", { title: "differs" }, "≠") : null;
    const cells = runs.map((run) => {
      const v = value(run, key);
      return el("td", {}, v === undefined ? el("span.faint", {}, "–") : short(v));
    });
    return el(differ ? "tr.differs" : "tr", { "data-key": key }, el("th", { scope: "row" }, key, mark), ...cells);
  });
  const head = runs.map((run) => el("th", { scope: "col" }, runLabel(run)));
  const count = keys.filter(differs).length;
  view.replaceChildren(
    el(".line", {},
      el("label.toggle", {}, only, el("span", {}, "Only differences")),
      el("span.faint", {}, runs.length > 1 ? `${count} of ${keys.length} entries differ` : "")),
    server.control ? controls(runs, loaded, again) : "",
    rows.length
      ? el(".scroll", { tabIndex: 0, role: "region", "aria-label": "Configuration" },
          el("table.data.configuration", {},
            el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Name"), ...head)), el("tbody", {}, ...rows)))
      : el("p.empty", {}, keys.length ? "Nothing differs." : "These runs have no manifest and no checkpoint yet."),
  );
}

/** Writes a value with as many digits as people compare. */
function short(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(8))) : String(value);
}

/** Inputs for hyper-parameters of runs that train. */
function controls(runs, loaded, again) {
  const live = runs.filter((run) => run.status === "running");
  const forms = live.map((run) => {
    const known = new Map(loaded[run.id]?.hyper ?? []);
    const rate = loaded[run.id]?.details["hyper-parameters/learning_rate"];
    const name = el("input", { value: [...known.keys()][0] ?? "learning_rate", "aria-label": "Hyper-parameter" });
    const number = el("input", {
      value: String(known.get(name.value) ?? rate ?? ""), inputMode: "decimal", "aria-label": "Value",
    });
    const note = el("span.faint");
    const submit = async (event) => {
      event.preventDefault();
      try {
        if (number.value.trim() === "" || !Number.isFinite(Number(number.value))) throw new Error("not a number");
        await post("/api/hyper", { run: run.id, name: name.value.trim(), value: Number(number.value) });
        note.textContent = "written to hyper.txt; HumanHyperParamSetter reads it at its next trigger";
        announce(note.textContent);
      } catch (error) {
        note.textContent = error.message;
      }
    };
    return el("form.control", { onsubmit: submit }, runLabel(run), name, number,
      el("button.button", {}, "Set"), note);
  });
  return forms.length ? el("section.panel", {}, el("h2", {}, "Hyper-parameters of running runs"), ...forms) : "";
}

// Images.

const mediaData = new Map();

function mediaOf(run, again) {
  if (!mediaData.has(run.id)) mediaData.set(run.id, cached());
  return mediaData.get(run.id)(String(run.revision), () => getJson("/api/media", { run: run.id }), again);
}

const imageCards = new Map();

/** Shows the images of the runs, each with a slider over steps. */
export function showImages(view, again) {
  const runs = shownRuns().filter((run) => run.images);
  const elements = [];
  for (const run of runs) {
    const media = mediaOf(run, again);
    for (const [tag, images] of Object.entries(media?.images ?? {})) {
      if (!matches(tag, ui.q)) continue;
      const key = `${run.id} ${tag}`;
      if (!imageCards.has(key)) imageCards.set(key, imageCard(run, tag));
      const card = imageCards.get(key);
      card.update(images);
      elements.push(card.element);
    }
  }
  update(view, elements, "The selected runs have no images.");
}

function imageCard(run, tag) {
  const picture = el("img", { alt: "", loading: "lazy" });
  const slider = el("input", { type: "range", min: "0", "aria-label": `Step of ${tag}` });
  const label = el("output");
  const element = el("article.card.image-card", { "data-tag": tag },
    el(".card-head", {}, el("h3", { title: tag }, tag), runLabel(run)),
    el(".picture", {}, picture), el(".line", {}, slider, label));
  let images = [];
  const show = () => {
    const image = images[Number(slider.value)];
    if (!image) return;
    const source = "/api/image?" + new URLSearchParams({ run: run.id, place: image.place });
    if (picture.getAttribute("src") !== source) picture.src = source;
    picture.alt = `${tag} of ${run.name} at step ${image.step}`;
    picture.classList.toggle("pixels", image.width < 360);
    label.textContent = `step ${formatX(image.step, "step")}`;
  };
  slider.addEventListener("input", show);
  const refresh = (next) => {
    // Stays at the newest image unless the user went back.
    const newest = !images.length || Number(slider.value) === images.length - 1;
    images = next;
    slider.max = String(images.length - 1);
    if (newest) slider.value = slider.max;
    slider.disabled = images.length < 2;
    show();
  };
  return { element, update: refresh };
}

/** Replaces the cards of a view if they differ. */
function update(view, elements, none) {
  const grid = view.querySelector(".grid");
  const same = grid && grid.children.length === elements.length && elements.every((e, i) => grid.children[i] === e);
  if (same && elements.length) return;
  view.replaceChildren(elements.length ? el(".grid", {}, ...elements) : el("p.empty", {}, none));
}

// Histograms.

const histogramCards = new Map();

/** Shows the histograms of the runs over steps. */
export function showHistograms(view, again) {
  const runs = shownRuns().filter((run) => run.histograms);
  const elements = [];
  for (const run of runs) {
    const media = mediaOf(run, again);
    for (const [tag, count] of Object.entries(media?.histograms ?? {})) {
      if (!matches(tag, ui.q)) continue;
      const key = `${run.id} ${tag}`;
      if (!histogramCards.has(key)) histogramCards.set(key, histogramCard(run, tag));
      const card = histogramCards.get(key);
      card.update(count);
      elements.push(card.element);
    }
  }
  update(view, elements, "The selected runs have no histograms.");
}

function histogramCard(run, tag) {
  const canvas = el("canvas", { role: "img", "aria-label": `Histograms of ${tag} of ${run.name}` });
  const plot = el(".plot", {}, canvas);
  const element = el("article.card", { "data-tag": tag },
    el(".card-head", {}, el("h3", { title: tag }, tag), runLabel(run)), plot);
  let [known, data, seen] = [-1, null, false];
  const draw = () => data && drawHistograms(canvas, plot, data, colorOf(run.id));
  const load = async () => {
    if (!seen || known === wanted) return draw();
    known = wanted;
    try {
      data = await getJson("/api/histograms", { run: run.id, tag });
      draw();
    } catch {
      known = -1;
    }
  };
  let wanted = 0;
  new IntersectionObserver((entries) => {
    seen = entries[entries.length - 1].isIntersecting;
    load();
  }).observe(element);
  new ResizeObserver(draw).observe(plot);
  const refresh = (count) => {
    wanted = count;
    load();
  };
  return { element, update: refresh };
}

/** Draws histograms as ridges, the newest in front. */
function drawHistograms(canvas, plot, data, color) {
  const ratio = Math.min(devicePixelRatio || 1, 3);
  const [width, height] = [plot.clientWidth, plot.clientHeight];
  if (!width) return;
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  const g = canvas.getContext("2d");
  g.scale(ratio, ratio);
  g.font = "11px system-ui, sans-serif";
  const peak = Math.min(74, height * 0.36);
  const [left, right, top, bottom] = [14, width - 54, peak + 6, height - 26];
  const steps = data.steps;
  const highest = Math.max(...steps.map((s) => Math.max(...s.bins)), 1e-12);
  steps.forEach((s, i) => {
    const part = steps.length > 1 ? i / (steps.length - 1) : 1;
    const base = top + part * (bottom - top);
    const x = (b) => left + ((b + 0.5) / s.bins.length) * (right - left);
    g.beginPath();
    g.moveTo(left, base);
    s.bins.forEach((v, b) => g.lineTo(x(b), base - (v / highest) * peak));
    g.lineTo(right, base);
    g.closePath();
    g.fillStyle = cssColor("--card");
    g.globalAlpha = 0.75;
    g.fill();
    g.fillStyle = color;
    g.globalAlpha = 0.12 + 0.4 * part;
    g.fill();
    g.globalAlpha = 0.35 + 0.65 * part;
    g.strokeStyle = color;
    g.lineWidth = 1.2;
    g.stroke();
  });
  g.globalAlpha = 1;
  g.fillStyle = cssColor("--muted");
  g.textBaseline = "top";
  for (let i = 0; i <= 4; i++) {
    g.textAlign = i === 0 ? "left" : i === 4 ? "right" : "center";
    g.fillText(format(data.low + ((data.high - data.low) * i) / 4, 3), left + ((right - left) * i) / 4, bottom + 8);
  }
  g.textAlign = "left";
  g.textBaseline = "middle";
  if (steps.length) {
    g.fillText(formatX(steps[steps.length - 1].step, "step"), right + 6, bottom);
    if (steps.length > 1) g.fillText(formatX(steps[0].step, "step"), right + 6, top);
  }
}

// The log.

const logs = new Map();
let follow = true;

/** A menu of runs for the views that show one. */
export function runMenu(fits) {
  const current = focusRun(fits);
  const runs = shownRuns().filter(fits);
  const menu = el("select", { "aria-label": "Run", onchange: () => set({ run: menu.value, scope: "" }) });
  for (const run of runs) menu.append(el("option", { value: run.id, selected: run.id === current?.id }, run.name));
  return menu;
}

/** Shows the end of a run's log, and what is appended to it. */
export async function showLog(view, again) {
  const run = focusRun((r) => r.log);
  if (!run) return view.replaceChildren(el("p.empty", {}, "The selected runs have no log."));
  const names = shownRuns().filter((r) => r.log).map((r) => r.id).join();
  const key = `log ${run.id} ${names}`;
  if (view.dataset.key !== key) {
    view.dataset.key = key;
    const box = el("input", { type: "checkbox", checked: follow, onchange: () => (follow = box.checked) });
    const filter = el("input.search", {
      type: "search", placeholder: "Filter lines", "aria-label": "Filter lines", value: ui.q,
      oninput: () => set({ q: filter.value }),
    });
    const text = el("pre.log", { tabIndex: 0, role: "log", "aria-label": `Log of ${run.name}` });
    view.replaceChildren(
      el(".line", {}, runMenu((r) => r.log), filter, el("label.toggle", {}, box, el("span", {}, "Follow"))), text);
    view.text = text;
    view.lines = -1;
  }
  if (!logs.has(run.id)) logs.set(run.id, { lines: [], next: null, busy: false, revision: -1 });
  const log = logs.get(run.id);
  renderLog(view, log);
  if (log.busy || (log.revision === run.revision && run.status !== "running")) return;
  log.busy = true;
  log.revision = run.revision;
  try {
    const answer = await getJson("/api/log", { run: run.id, ...(log.next === null ? {} : { from: log.next }) });
    if (answer.restarted) log.lines = [];
    log.next = answer.next;
    if (answer.text) log.lines.push(...answer.text.replace(/\n$/, "").split("\n"));
    log.lines.splice(0, Math.max(0, log.lines.length - 5000));
    if (answer.text || answer.restarted) {
      log.version = (log.version ?? 0) + 1;
      again();
    }
  } catch {
    log.revision = -1;
  } finally {
    log.busy = false;
  }
}

function renderLog(view, log) {
  const shown = `${log.version} ${ui.q}`;
  if (view.lines === shown) return;
  view.lines = shown;
  const lines = log.lines.filter((line) => matches(line, ui.q));
  const rows = lines.map((line) => {
    const [, head, rest] = /^(\[[^\]]*\]\s?)?(.*)$/.exec(line);
    const level = rest.startsWith("WRN ") ? ".warn" : rest.startsWith("ERR ") ? ".error" : "";
    return el("span.log-line" + level, {}, head ? el("span.faint", {}, head) : null, rest + "\n");
  });
  view.text.replaceChildren(...rows);
  if (follow) view.text.scrollTop = view.text.scrollHeight;
}

// Where the time goes.

const shareData = cached();
const SHARES = ["input", "compute", "callbacks", "other"];

/** Bars that show where the last epoch of each run spent its time. */
export function timeBars(again) {
  const tag = server.tags.indexOf("time/compute (%)");
  const runs = shownRuns().filter((run) => tag >= 0 && run.tags.includes(tag)).slice(0, 12);
  if (!runs.length) return null;
  const table = shareData(revisions(runs), () => getJson("/api/table", { runs: ids(runs) }), again);
  if (!table) return null;
  const legend = SHARES.map((name) => el("span.legend", {}, el(`span.swatch.${name}`), name));
  const rows = runs.map((run) => {
    const parts = SHARES.map((name) => [name, table[run.id]?.[`time/${name} (%)`]?.last[1] ?? 0]);
    const text = parts.map(([name, share]) => `${name} ${share.toFixed(0)} %`).join(", ");
    const bar = el(".share", { role: "img", "aria-label": text, title: text });
    for (const [name, share] of parts) {
      const part = el(`span.${name}`, {}, share >= 9 ? `${share.toFixed(0)} %` : "");
      part.style.width = `${share}%`;
      bar.append(part);
    }
    const seconds = table[run.id]?.["time/seconds per epoch"]?.last[1];
    return el(".share-row", {}, runLabel(run), bar, el("span.faint", {}, seconds ? `${format(seconds, 3)} s` : ""));
  });
  return el("section.panel", { id: "time-bars" },
    el(".panel-head", {}, el("h2", {}, "The last epoch"), el(".legends", {}, ...legend)), ...rows);
}
