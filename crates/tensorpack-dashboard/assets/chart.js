// A chart of several curves on a canvas.

import { announce, colorOf, cssColor, direction, el, format, formatX, isDark, $, server, ui } from "./state.js";

/** Returns round numbers between two values. */
export function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const values = [];
  const first = Math.ceil(low / step - 1e-9) * step;
  // Not up to `high`: a step that is smaller than the distance of two numbers would never arrive.
  const most = Math.floor((high - first) / step + 1e-9);
  for (let i = 0; i <= most; i++) {
    const v = first + i * step;
    values.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  }
  return values;
}

/** Returns powers of ten between two values, or round numbers if there are too few. */
export function logTicks(low, high, count) {
  const [a, b] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  if (b - a < 1) return ticks(low, high, count).filter((v) => v > 0);
  const stride = Math.ceil((b - a + 1) / Math.max(2, count));
  const values = [];
  for (let e = a; e <= b; e += stride) values.push(10 ** e);
  return values;
}

/** A scale from values to pixels. */
function scale(low, high, from, to, log) {
  const map = log ? Math.log : (v) => v;
  const [a, b] = [map(low), map(high)];
  const factor = (to - from) / (b - a || 1);
  const pixel = (v) => from + (map(v) - a) * factor;
  pixel.invert = (p) => {
    const v = a + (p - from) / factor;
    return log ? Math.exp(v) : v;
  };
  return pixel;
}

/** Returns the index of the value of an ascending array that is nearest to `x`. */
function nearest(values, x) {
  let [low, high] = [0, values.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - values[low - 1] <= values[low] - x ? low - 1 : low;
}

const PAD = { left: 54, right: 14, top: 10, bottom: 26 };

export class Chart {
  /** Creates a chart of a statistic. `zoom(from, to)` is called when the user zooms. */
  constructor(tag, zoom, pin) {
    this.tag = tag;
    this.curves = [];
    this.zoom = zoom;
    this.highlighted = null;
    this.canvas = el("canvas");
    this.overlay = el("canvas.overlay");
    this.element = el(
      ".plot",
      { tabIndex: 0, role: "img", "aria-label": `Chart of ${tag}` },
      this.canvas,
      this.overlay,
    );
    this.cursor = null;
    this.drag = null;
    this.element.addEventListener("pointermove", (e) => this.move(e));
    this.element.addEventListener("pointerleave", () => this.leave());
    this.element.addEventListener("pointerdown", (e) => this.press(e));
    this.element.addEventListener("pointerup", (e) => this.release(e));
    this.element.addEventListener("dblclick", () => zoom(null));
    this.element.addEventListener("blur", () => this.leave());
    this.element.addEventListener("keydown", (e) => this.key(e, pin));
  }

  /** Sets the curves: run, raw and smooth x and y, and where values are not finite. */
  setCurves(curves) {
    this.curves = curves;
    this.draw();
    this.describe();
  }

  describe() {
    const names = new Map(server.runs.map((run) => [run.id, run.name]));
    const last = this.curves.slice(0, 5).map((c) => {
      const value = c.rawY[c.rawY.length - 1];
      return value === undefined ? "" : `${names.get(c.run)}: ${format(value)}`;
    });
    const more = this.curves.length > 5 ? ` and ${this.curves.length - 5} more runs` : "";
    const text = last.filter(Boolean).join(", ");
    this.element.setAttribute("aria-label", `Chart of ${this.tag}. Last values: ${text || "none"}${more}.`);
  }

  /** The range of x and y that is visible. */
  extent() {
    const log = ui.ylog === "1";
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    const clipped = ui.clip === "1" ? [] : null;
    for (const c of this.curves) {
      for (const x of [c.rawX[0], c.rawX[c.rawX.length - 1], ...c.bad]) {
        if (x < x0) x0 = x;
        if (x > x1) x1 = x;
      }
      for (const y of this.faint() ? c.rawY : c.smoothY) {
        if (log && y <= 0) continue;
        if (clipped) clipped.push(y);
        if (y < y0) y0 = y;
        if (y > y1) y1 = y;
      }
    }
    if (clipped && clipped.length > 20) {
      clipped.sort((a, b) => a - b);
      y0 = clipped[Math.floor(clipped.length * 0.02)];
      y1 = clipped[Math.ceil(clipped.length * 0.98) - 1];
    }
    if (ui.from !== "") [x0, x1] = [Number(ui.from), Number(ui.to)];
    if (!(x0 <= x1)) [x0, x1] = [0, 1];
    if (!(y0 <= y1)) [y0, y1] = log ? [0.1, 1] : [0, 1];
    if (x0 === x1) [x0, x1] = ui.xlog ? [x0 / 2, x1 * 2] : [x0 - 0.5, x1 + 0.5];
    // Values that differ by rounding only are a constant.
    if (y1 - y0 <= 1e-12 * Math.max(Math.abs(y0), Math.abs(y1))) {
      const d = Math.abs(y0) * 0.1 || 0.5;
      [y0, y1] = log ? [y0 / 2, y1 * 2] : [y0 - d, y1 + d];
    }
    const margin = log ? (y1 / y0) ** 0.05 : (y1 - y0) * 0.06;
    return log ? [x0, x1, y0 / margin, y1 * margin] : [x0, x1, y0 - margin, y1 + margin];
  }

  /** Whether the raw curves are drawn behind the smoothed ones. With many runs they would hide them. */
  faint() {
    return this.curves.length <= 24;
  }

  resize(canvas) {
    const ratio = Math.min(devicePixelRatio || 1, 3);
    const { clientWidth, clientHeight } = this.element;
    const [w, h] = [Math.round(clientWidth * ratio), Math.round(clientHeight * ratio)];
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, clientWidth, clientHeight);
    return context;
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width) return;
    const g = this.resize(this.canvas);
    const [x0, x1, y0, y1] = this.extent();
    const right = width - PAD.right;
    const bottom = height - PAD.bottom;
    this.px = scale(x0, x1, PAD.left, right, ui.xlog === "1" && x0 > 0);
    this.py = scale(y0, y1, bottom, PAD.top, ui.ylog === "1");
    g.font = "11px system-ui, sans-serif";
    g.lineWidth = 1;
    g.strokeStyle = cssColor("--grid");
    g.fillStyle = cssColor("--muted");
    g.textAlign = "right";
    g.textBaseline = "middle";
    const yTicks = ui.ylog === "1" ? logTicks(y0, y1, 5) : ticks(y0, y1, 5);
    for (const v of yTicks) {
      const y = Math.round(this.py(v)) + 0.5;
      if (y < PAD.top - 1 || y > bottom + 1) continue;
      g.beginPath();
      g.moveTo(PAD.left, y);
      g.lineTo(right, y);
      g.stroke();
      g.fillText(format(v), PAD.left - 8, y);
    }
    g.textAlign = "center";
    g.textBaseline = "top";
    const count = Math.max(2, Math.floor((right - PAD.left) / 90));
    const xTicks = ui.xlog === "1" && x0 > 0 ? logTicks(x0, x1, count) : ticks(x0, x1, count);
    for (const v of xTicks) {
      if (ui.x === "step" && !Number.isInteger(v)) continue;
      const x = this.px(v);
      const text = formatX(v);
      const half = g.measureText(text).width / 2;
      if (x - half < PAD.left - 20 || x + half > width - 2) continue;
      g.fillText(text, x, bottom + 8);
    }
    if (!this.curves.some((c) => c.rawX.length || c.bad.length)) {
      g.textBaseline = "middle";
      const text = ui.x === "time" ? "no times: the run has no event file" : "no values in this range";
      g.fillText(text, (PAD.left + right) / 2, (PAD.top + bottom) / 2);
      return;
    }
    g.save();
    g.beginPath();
    // Points at the edges are drawn whole.
    g.rect(PAD.left - 5, 0, right - PAD.left + 10, bottom + 5);
    g.clip();
    g.lineJoin = "round";
    const smoothing = Number(ui.smooth) > 0;
    const dimmed = (c) => this.highlighted && c.run !== this.highlighted;
    // The highlighted run is drawn last, above the others.
    const order = [...this.curves].sort((a, b) => (a.run === this.highlighted) - (b.run === this.highlighted));
    if (smoothing && this.faint()) {
      for (const c of order) {
        g.globalAlpha = dimmed(c) ? 0.06 : isDark() ? 0.28 : 0.24;
        this.line(g, c.rawX, c.rawY, colorOf(c.run), 1);
      }
    }
    for (const c of order) {
      g.globalAlpha = dimmed(c) ? 0.15 : 1;
      const wide = c.run === this.highlighted ? 2.6 : this.curves.length > 24 ? 1.1 : 1.8;
      this.line(g, smoothing ? c.smoothX : c.rawX, smoothing ? c.smoothY : c.rawY, colorOf(c.run), wide);
      g.fillStyle = colorOf(c.run);
      for (const x of c.bad) {
        // A value that is not finite has no height: a triangle at the top.
        const p = this.px(x);
        g.beginPath();
        g.moveTo(p - 4, PAD.top);
        g.lineTo(p + 4, PAD.top);
        g.lineTo(p, PAD.top + 7);
        g.fill();
      }
    }
    g.restore();
    if (this.cursor !== null) this.drawCursor();
  }

  line(g, xs, ys, color, width) {
    const log = ui.ylog === "1";
    g.strokeStyle = color;
    g.lineWidth = width;
    g.beginPath();
    let pen = false;
    for (let i = 0; i < xs.length; i++) {
      if (log && ys[i] <= 0) {
        pen = false;
        continue;
      }
      const [x, y] = [this.px(xs[i]), this.py(ys[i])];
      if (pen) g.lineTo(x, y);
      else g.moveTo(x, y);
      pen = true;
    }
    g.stroke();
    if (xs.length <= 40) {
      g.fillStyle = color;
      const radius = xs.length === 1 ? 3.5 : width > 1.5 ? 2.2 : 1.4;
      for (let i = 0; i < xs.length; i++) {
        g.beginPath();
        g.arc(this.px(xs[i]), this.py(ys[i]), radius, 0, 7);
        g.fill();
      }
    }
  }

  // The cursor and the zoom.

  at(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  move(event) {
    if (!this.px) return;
    const [x, y] = this.at(event);
    this.pointerY = y;
    this.cursor = this.px.invert(x);
    if (this.drag !== null) this.drag.to = x;
    this.drawCursor(event);
  }

  leave() {
    this.cursor = null;
    this.drag = null;
    this.resize(this.overlay);
    $("tooltip").hidden = true;
  }

  press(event) {
    if (event.button !== 0 || event.pointerType === "touch" || !this.px) return;
    const [x] = this.at(event);
    this.drag = { from: x, to: x };
    this.element.setPointerCapture(event.pointerId);
  }

  release() {
    const drag = this.drag;
    this.drag = null;
    if (drag && Math.abs(drag.to - drag.from) > 6) {
      const [a, b] = [this.px.invert(Math.min(drag.from, drag.to)), this.px.invert(Math.max(drag.from, drag.to))];
      this.leave();
      this.zoom(a, b);
    }
  }

  key(event, pin) {
    if (!this.px || event.ctrlKey || event.metaKey || event.altKey) return;
    const [x0, x1] = this.extent();
    const step = (x1 - x0) / 50;
    const at = this.cursor ?? (x0 + x1) / 2;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const to = at + (event.key === "ArrowRight" ? step : -step);
      this.cursor = Math.min(x1, Math.max(x0, to));
      this.pointerY = undefined;
      this.drawCursor();
      announce(`${ui.x} ${formatX(this.cursor)}: ${this.values().map((v) => `${v.name} ${format(v.y)}`).join(", ")}`);
    } else if (event.key === "+" || event.key === "=") {
      this.zoom(at - (at - x0) / 2, at + (x1 - at) / 2);
    } else if (event.key === "-") {
      this.zoom(at - (at - x0) * 2, at + (x1 - at) * 2);
    } else if (event.key === "Escape") {
      this.zoom(null);
    } else if (event.key === "p") {
      pin();
    } else {
      return;
    }
    event.preventDefault();
  }

  /** The values at the cursor, the nearest to the pointer first. */
  values() {
    const names = new Map(server.runs.map((run) => [run.id, run.name]));
    const smoothing = Number(ui.smooth) > 0;
    const found = [];
    for (const c of this.curves) {
      const [xs, ys] = smoothing ? [c.smoothX, c.smoothY] : [c.rawX, c.rawY];
      if (!xs.length) continue;
      const i = nearest(xs, this.cursor);
      const raw = nearest(c.rawX, xs[i]);
      found.push({ run: c.run, name: names.get(c.run) ?? "", x: xs[i], y: ys[i], raw: c.rawY[raw] });
    }
    const sign = direction(this.tag) < 0 ? 1 : -1;
    if (this.pointerY === undefined || found.length <= 8) found.sort((a, b) => sign * (a.y - b.y));
    else found.sort((a, b) => Math.abs(this.py(a.y) - this.pointerY) - Math.abs(this.py(b.y) - this.pointerY));
    return found.slice(0, 8);
  }

  drawCursor(event) {
    const g = this.resize(this.overlay);
    const bottom = this.element.clientHeight - PAD.bottom;
    if (this.drag && Math.abs(this.drag.to - this.drag.from) > 3) {
      g.fillStyle = cssColor("--selection");
      const from = Math.max(PAD.left, Math.min(this.drag.from, this.drag.to));
      g.fillRect(from, PAD.top, Math.max(this.drag.from, this.drag.to) - from, bottom - PAD.top);
    }
    const values = this.values();
    if (!values.length) return;
    const x = this.px(this.cursor);
    g.strokeStyle = cssColor("--muted");
    g.globalAlpha = 0.6;
    g.setLineDash([3, 3]);
    g.beginPath();
    g.moveTo(x, PAD.top);
    g.lineTo(x, bottom);
    g.stroke();
    g.setLineDash([]);
    g.globalAlpha = 1;
    for (const v of values) {
      g.beginPath();
      g.arc(this.px(v.x), this.py(v.y), 3.5, 0, 7);
      g.fillStyle = colorOf(v.run);
      g.fill();
      g.lineWidth = 1.5;
      g.strokeStyle = cssColor("--card");
      g.stroke();
    }
    this.showTooltip(values, event);
  }

  showTooltip(values, event) {
    const smoothing = Number(ui.smooth) > 0;
    const rows = values.map((v) => {
      const dot = el("span.dot");
      dot.style.background = colorOf(v.run);
      return el(
        "tr",
        {},
        el("td", {}, dot),
        el("td.name", {}, v.name),
        el("td.number", {}, format(v.y, 5)),
        smoothing ? el("td.number.faint", {}, format(v.raw, 5)) : null,
      );
    });
    const more = this.curves.length - values.length;
    const tooltip = $("tooltip");
    const head = `${ui.x} ${formatX(values[0].x)}`;
    const labels = smoothing ? el("span.faint", {}, "smoothed · value") : null;
    tooltip.replaceChildren(
      el(".tooltip-head", {}, el("b", {}, head), labels),
      el("table", {}, el("tbody", {}, ...rows)),
      more > 0 ? el(".faint", {}, `and ${more} more`) : "",
    );
    tooltip.hidden = false;
    const box = this.element.getBoundingClientRect();
    const x = event ? event.clientX : box.left + this.px(this.cursor);
    const y = event ? event.clientY : box.top + 20;
    const { offsetWidth: w, offsetHeight: h } = tooltip;
    tooltip.style.left = `${Math.max(4, x + 16 + w > innerWidth ? x - w - 16 : x + 16)}px`;
    tooltip.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - h - 8))}px`;
  }
}
