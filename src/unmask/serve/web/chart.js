// Two small pictures: the plan (position against hitting time), and numbers of two panes as their canvases fill.

const SVG = "http://www.w3.org/2000/svg";
const TOPS = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1];
const EDGE = { left: 38, right: 10, top: 12, bottom: 18 };
const MOST_NUMBERED = 32; // more marks than these are too close to be numbered

function make(name, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, value);
  }
  if (text !== null) {
    element.textContent = text;
  }
  return element;
}

/** An SVG as wide as its figure, drawn anew when that changes. */
class Chart {
  constructor(figure, height) {
    this.height = height;
    this.width = 0;
    this.svg = make("svg", { role: "img", height });
    figure.append(this.svg);
    new ResizeObserver(() => this.#resize()).observe(figure);
  }

  x(part) {
    return EDGE.left + part * (this.width - EDGE.left - EDGE.right);
  }

  y(part) {
    return EDGE.top + part * (this.height - EDGE.top - EDGE.bottom);
  }

  frame({ top, bottom, left, right }) {
    const at = (x, y, anchor, text) => make("text", { x, y, "text-anchor": anchor }, text);
    this.svg.replaceChildren(
      make("line", { class: "axis", x1: this.x(0), x2: this.x(0), y1: this.y(0), y2: this.y(1) }),
      make("line", { class: "axis", x1: this.x(0), x2: this.x(1), y1: this.y(1), y2: this.y(1) }),
      at(EDGE.left - 5, this.y(0) + 8, "end", top), at(EDGE.left - 5, this.y(1), "end", bottom),
      at(this.x(0), this.height - 4, "start", left), at(this.x(1), this.height - 4, "end", right),
    );
  }

  #resize() {
    const width = this.svg.parentElement.clientWidth;
    if (width && width !== this.width) {
      this.width = width;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
      this.svg.setAttribute("width", width);
      this.draw();
    }
  }
}

/** Position from left to right, hitting time tau from where the run starts down to 0: the run moves downwards. */
export class PlanChart extends Chart {
  constructor(figure) {
    super(figure, 132);
    this.track = null;
    this.marks = new Map();
  }

  start(track) {
    this.track = track;
    this.draw();
  }

  draw() {
    if (!this.track || !this.width) {
      return;
    }
    const { plan, length } = this.track;
    // An infill starts late: its few holes would otherwise crowd at the bottom.
    this.top = TOPS.find((top) => top >= Math.max(...(plan.tau?.length ? plan.tau : [1])));
    this.frame({ top: `τ ${this.top}`, bottom: "0", left: "position 0", right: String(Math.max(length - 1, 0)) });
    this.now = make("line", { class: "now", x1: this.x(0), x2: this.x(1), y1: this.y(0), y2: this.y(0) });
    this.clock = make("text", { class: "clock", x: this.x(1), "text-anchor": "end" });
    this.svg.append(this.now, this.clock);
    this.marks.clear();
    (plan.order ?? []).forEach((position, i) => this.#mark(position, plan.tau?.[i] ?? null));
    if (plan.order?.length <= MOST_NUMBERED) {
      plan.order.forEach((position, i) => this.#number(position, i + 1));
    }
    this.show(this.shown ?? 0, this.colour);
  }

  /** Fill the marks of what has happened after so many calls; colour(cell) is from 0 to 1. */
  show(calls, colour) {
    Object.assign(this, { shown: calls, colour });
    if (!this.track || !this.width || !colour) {
      return;
    }
    let filled = 0;
    this.track.at(calls).forEach((cell, position) => {
      const happened = cell.call > 0 && cell.id !== null;
      if (happened && cell.tau !== null && (!this.marks.has(position) || !this.track.plan.order)) {
        this.#mark(position, cell.tau);
      }
      const mark = this.marks.get(position);
      if (mark) {
        mark.classList.toggle("happened", happened);
        mark.classList.toggle("free", !happened && !this.track.plan.order);
        mark.style.setProperty("--at", happened ? colour(cell) : 0);
      }
      filled += happened;
    });
    const taus = calls ? this.track.steps[calls - 1].tau ?? [] : [];
    const tau = taus.length ? Math.min(...taus) : this.top;
    const y = this.y(1 - tau / this.top);
    this.now.setAttribute("y1", y);
    this.now.setAttribute("y2", y);
    this.clock.setAttribute("y", y - 4);
    this.clock.textContent = calls && filled < this.track.holes ? `τ ${tau.toFixed(2)}` : "";
    this.svg.setAttribute("aria-label",
      `Plan: position against hitting time. ${filled} of ${this.track.holes} positions are filled.`);
  }

  /** Which comes first, second, ... */
  #number(position, count) {
    const mark = this.marks.get(position);
    const at = { x: mark.getAttribute("cx"), y: Number(mark.getAttribute("cy")) - 7, "text-anchor": "middle" };
    this.svg.append(make("text", { class: "count", ...at }, String(count)));
  }

  #mark(position, tau) {
    const { length } = this.track;
    const radius = Math.min(Math.max((this.width / Math.max(length, 1)) * 0.4, 1.6), 4);
    const mark = this.marks.get(position) ?? make("circle", { class: "mark heat", r: radius, "data-position": position });
    mark.setAttribute("cx", this.x(length > 1 ? position / (length - 1) : 0.5));
    mark.setAttribute("cy", this.y(1 - (tau ?? 0) / this.top));
    if (!this.marks.has(position)) {
      this.marks.set(position, mark);
      this.svg.append(mark);
    }
  }
}

/** One line per pane: a number that changes as the canvas fills. */
export class LineChart extends Chart {
  constructor(figure, unit) {
    super(figure, 112);
    this.unit = unit;
    this.lines = [];
    this.most = 1;
  }

  /** lines: per pane [[tokens, value], ...]; most: the tokens that there are to fill. */
  show(lines, most) {
    const key = JSON.stringify([most, lines.map((line) => line.length), lines.map((line) => line.at(-1))]);
    if (key !== this.drawn) {
      Object.assign(this, { lines, most: Math.max(most, 1), drawn: key });
      this.draw();
    }
  }

  draw() {
    if (!this.width) {
      return;
    }
    const top = Math.max(1, Math.ceil(Math.max(...this.lines.flat().map(([, value]) => value))));
    this.frame({ top: String(top), bottom: "0", left: "0", right: `${this.most} tokens` });
    const last = this.lines.map((line) => line.at(-1)?.[1] ?? 0);
    this.lines.forEach((points, i) => {
      const path = points.map(([x, y]) => `${this.x(x / this.most).toFixed(1)},${this.y(1 - y / top).toFixed(1)}`);
      this.svg.append(make("polyline", { class: `line-${i}`, points: path.join(" ") }));
      if (points.length) {
        const [x, y] = points.at(-1);
        const below = y < Math.max(...last) || (i > 0 && y === last[0]);
        const beside = this.x(x / this.most) < 70 ? { x: this.x(x / this.most) + 6, "text-anchor": "start" }
          : { x: this.x(x / this.most) - 4, "text-anchor": "end" };
        const label = `${"AB"[i]} ${y.toFixed(2)}`;
        this.svg.append(make("text", { class: `line-${i}`, y: this.y(1 - y / top) + (below ? 14 : -5), ...beside }, label));
      }
    });
    this.svg.setAttribute("aria-label", this.lines.map((points, i) =>
      `Pane ${"AB"[i]}: ${points.length ? points.at(-1)[1].toFixed(2) : "no"} ${this.unit}`).join("; "));
  }
}
