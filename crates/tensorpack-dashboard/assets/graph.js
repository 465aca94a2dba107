// The graph of a run, one name scope at a time, drawn from top to bottom.

import { el, focusRun, getJson, set, shownRuns, ui } from "./state.js";
import { runMenu } from "./tabs.js";

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const BOX = { width: 190, height: 46, gapX: 28, gapY: 34 };
const MAX_PARTS = 400;

/** Places each part below its inputs, and near them. */
function layout(parts) {
  const rank = new Array(parts.length).fill(0);
  // Parts are in the order in which they were built, so few passes are needed; a scope that feeds
  // another and reads from it is a cycle, which the bound ends.
  for (let pass = 0; pass < 50; pass++) {
    let moved = false;
    parts.forEach((part, i) => {
      for (const input of part.inputs) {
        if (rank[input] + 1 > rank[i] && rank[input] < parts.length) {
          rank[i] = rank[input] + 1;
          moved = true;
        }
      }
    });
    if (!moved) break;
  }
  // What nothing feeds goes right above its first user.
  const users = parts.map(() => []);
  parts.forEach((part, i) => part.inputs.forEach((input) => users[input].push(i)));
  parts.forEach((part, i) => {
    if (!part.inputs.length && users[i].length) rank[i] = Math.max(0, Math.min(...users[i].map((u) => rank[u])) - 1);
  });
  const used = [...new Set(rank)].sort((a, b) => a - b);
  const rows = used.map((r) => parts.map((_, i) => i).filter((i) => rank[i] === r));
  const x = new Array(parts.length).fill(0);
  rows.forEach((row) => row.forEach((i, at) => (x[i] = at - (row.length - 1) / 2)));
  for (let pass = 0; pass < 8; pass++) {
    for (const row of pass % 2 ? [...rows].reverse() : rows) {
      const wish = new Map(row.map((i) => {
        const near = pass % 2 ? users[i] : parts[i].inputs;
        return [i, near.length ? near.reduce((sum, n) => sum + x[n], 0) / near.length : x[i]];
      }));
      row.sort((a, b) => wish.get(a) - wish.get(b));
      const middle = row.reduce((sum, i) => sum + wish.get(i), 0) / row.length;
      row.forEach((i, at) => (x[i] = middle + at - (row.length - 1) / 2));
    }
  }
  const least = Math.min(...x);
  const places = parts.map(() => null);
  rows.forEach((row, r) => row.forEach((i) => {
    places[i] = [(x[i] - least) * (BOX.width + BOX.gapX) + 20, r * (BOX.height + BOX.gapY) + 20];
  }));
  return places;
}

function draw(graph) {
  const parts = graph.parts;
  const places = layout(parts);
  const width = Math.max(...places.map((p) => p[0])) + BOX.width + 20;
  const height = Math.max(...places.map((p) => p[1])) + BOX.height + 20;
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Graph" });
  parts.forEach((part, i) => {
    for (const input of part.inputs) {
      const [x1, y1] = [places[input][0] + BOX.width / 2, places[input][1] + BOX.height];
      const [x2, y2] = [places[i][0] + BOX.width / 2, places[i][1]];
      const bend = Math.max(20, Math.abs(y2 - y1) / 2);
      const d = `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`;
      root.append(svg("path", { d, class: "edge" }));
    }
  });
  const cut = (text, n) => (text.length > n ? text.slice(0, n - 1) + "…" : text);
  parts.forEach((part, i) => {
    const [x, y] = places[i];
    const shape = part.shape ? ` [${part.shape.map((n) => (n < 0 ? "?" : n)).join(", ")}]` : "";
    const note = part.scope ? `${part.count} operation${part.count > 1 ? "s" : ""}${shape}` : `${part.op}${shape}`;
    const kind = part.scope ? "scope" : part.op === "Placeholder" || part.op === "input" ? "source" : "op";
    const group = svg("g", { class: `node ${kind}`, transform: `translate(${x},${y})` },
      svg("title", {}, `${part.label}: ${note}`),
      svg("rect", { width: BOX.width, height: BOX.height, rx: 9 }),
      svg("text", { x: BOX.width / 2, y: 19, class: "label" }, cut(part.label, 24)),
      svg("text", { x: BOX.width / 2, y: 35, class: "note" }, cut(note, 30)));
    if (part.scope) {
      const open = () => set({ scope: graph.scope ? `${graph.scope}/${part.label}` : part.label });
      group.setAttribute("tabindex", "0");
      group.setAttribute("role", "button");
      group.setAttribute("aria-label", `Open ${part.label}`);
      group.addEventListener("click", open);
      group.addEventListener("keydown", (e) => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), open()));
    }
    root.append(group);
  });
  return root;
}

/** Shows the graph of a run. */
export async function showGraph(view) {
  const run = focusRun((r) => r.graph);
  if (!run) return view.replaceChildren(el("p.empty", {}, "The selected runs have no graph."));
  const names = shownRuns().filter((r) => r.graph).map((r) => r.id).join();
  const key = `graph ${run.id} ${ui.scope} ${names}`;
  if (view.dataset.key === key) return;
  view.dataset.key = key;
  let graph;
  try {
    graph = await getJson("/api/graph", { run: run.id, scope: ui.scope });
  } catch (error) {
    return view.replaceChildren(el("p.empty", {}, error.message));
  }
  if (view.dataset.key !== key) return;
  const crumbs = el("nav.crumbs", { "aria-label": "Scope" });
  const path = ui.scope ? ui.scope.split("/") : [];
  const crumb = (label, scope) => el("button.text-button", { onclick: () => set({ scope }) }, label);
  crumbs.append(crumb("model", ""));
  path.forEach((part, i) => crumbs.append(" / ", crumb(part, path.slice(0, i + 1).join("/"))));
  const note = el("span.faint", {}, `${graph.parts.length} parts of a graph with ${graph.nodes} nodes`);
  const many = graph.parts.length > MAX_PARTS;
  const drawing = many
    ? el("p.empty", {}, `This scope has ${graph.parts.length} parts, which are too many to draw.`)
    : graph.parts.length ? draw(graph) : el("p.empty", {}, "This scope is empty.");
  const box = el(".scroll.graph", { tabIndex: 0, role: "region", "aria-label": "Graph of the model" }, drawing);
  view.replaceChildren(el(".line", {}, runMenu((r) => r.graph), crumbs, note), box);
}
