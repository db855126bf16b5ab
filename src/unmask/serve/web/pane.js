// One pane: a canvas of tokens, the numbers of the run, and its plan. It shows what its track says at the playhead.

import { captioned, remaining, write } from "./cells.js";
import { PlanChart } from "./chart.js";
import { surprise, Track } from "./track.js";

const UNSURE_BITS = 10; // a token this surprising, or more, has the colour of the least sure
const MOST_FOG = 6; // a blank is about as wide as its token will be, within reason

export class Pane {
  /** inspect(pane, position) is called when a token is pointed at, erased(pane) when some were erased by hand. */
  constructor(name, { inspect, erased, picked }) {
    this.name = name;
    this.root = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.canvas = this.find(".canvas");
    this.chart = new PlanChart(this.find(".plan"));
    this.tracks = [];
    this.index = 0;
    this.cursor = -1;
    this.erased = new Set();
    this.#listen(inspect, erased, picked);
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  get track() {
    return this.tracks[this.index] ?? null;
  }

  get done() {
    return this.tracks.length > 0 && this.tracks.every((track) => track.done);
  }

  get calls() {
    return Math.max(0, ...this.tracks.map((track) => track.calls));
  }

  get arrived() {
    return Math.max(0, ...this.tracks.map((track) => track.steps.length));
  }

  /** Get ready for a run of this model; about: the settings in words; unplanned: why there is no plan, if so. */
  start(model, about, unplanned, number) {
    Object.assign(this, { model, unplanned, tracks: [], index: 0, cursor: -1, number, shown: 0, erased: new Set() });
    this.find("h2").textContent = this.name ? `${this.name} · ${model.id}` : model.id;
    this.find(".about").textContent = about;
    this.root.classList.toggle("mono", ["smiles", "selfies"].includes(model.tokenizer));
    this.canvas.replaceChildren();
    this.canvas.setAttribute("aria-label", `Canvas ${this.name}, empty`);
    this.note(null);
    this.root.dataset.waiting = "";
    this.#pick(0);
  }

  take(event, data) {
    const index = data.index ?? 0;
    if (event === "plan") {
      delete this.root.dataset.waiting;
      this.tracks[index] = new Track(data);
      if (index === this.index) {
        this.#build();
      }
    } else if (event === "step") {
      this.tracks[index].add(data);
    } else if (event === "done") {
      this.tracks[index].done = data;
    }
  }

  /** Draw the canvas, the numbers and the plan after so many calls, or as many as there are. */
  show(calls, colour) {
    if (!this.track) {
      return;
    }
    const track = this.track;
    const now = Math.min(calls, track.steps.length);
    const when = (cell) => (cell.call - 1) / Math.max(track.calls - 1, 1);
    const sure = (cell) => Math.max(0, 1 - surprise(cell.probability) / UNSURE_BITS);
    const heat = colour === "when" ? when : sure;
    const key = `${this.index} ${now} ${colour} ${track.calls} ${this.chart.width} ${Boolean(track.done)}`;
    if (key === this.drawn) {
      return;
    }
    this.drawn = key;
    this.shown = now;
    track.at(now).forEach((cell, position) => {
      for (const set of this.cells) {
        this.#cell(set[position], cell, position, now, heat);
      }
    });
    this.#numbers(now);
    this.chart.show(now, heat);
    if (this.root.classList.contains("image")) {
      this.find("figure:nth-child(2) figcaption").textContent = colour === "when" ? "when it came" : "how sure";
    }
  }

  /** The token at a position, in words. */
  describe(position) {
    const cell = this.track?.at(this.shown)[position];
    if (!cell) {
      return "";
    }
    const where = `${this.name ? `${this.name}, ` : ""}position ${position}`;
    if (cell.id === null) {
      const planned = this.track.plan.order?.indexOf(position) ?? -1;
      const tau = planned >= 0 ? this.track.plan.tau?.[planned] : null;
      return `${where}: a blank${tau != null ? `, to be filled at τ ${tau.toFixed(3)}` : ""}.`;
    }
    const token = `${where}: “${cell.piece.replace(/\n/g, "↵")}”, id ${cell.id}`;
    if (!cell.call) {
      return `${token}, given.`;
    }
    const bits = cell.probability > 0 ? `, ${surprise(cell.probability).toFixed(2)} bits` : "";
    const tau = cell.tau === null ? "" : `, τ ${cell.tau.toFixed(3)}`;
    const sure = `probability ${cell.probability.toPrecision(3)}${bits}`;
    return `${token}, call ${cell.call} of ${this.track.calls}${tau}, ${sure}.`;
  }

  /** The ids as they are shown, null in holes and where something was erased. */
  get ids() {
    return this.track.at(this.shown).map((cell, i) => (this.erased.has(i) ? null : cell.id));
  }

  /** Mark the selected tokens as erased, or the one at the cursor; whether there were any. */
  erase() {
    const selected = this.#selected();
    const chosen = selected.length ? selected : this.cursor >= 0 ? [this.cursor] : [];
    chosen.forEach((position) => this.#erase(position, selected.length > 0 || !this.erased.has(position)));
    window.getSelection().removeAllRanges();
    return chosen.length > 0;
  }

  /** What went wrong, below the numbers; null takes it away. */
  note(content) {
    const note = this.find(".note");
    note.hidden = content === null;
    note.replaceChildren(...(content ?? []));
    this.root.classList.toggle("nothing", content !== null && !this.track);
    delete this.root.dataset.waiting;
  }

  #pick(index) {
    this.index = index;
    this.drawn = null;
    this.find(".pick").hidden = this.number < 2;
    this.find("[data-which]").textContent = `sequence ${index + 1} of ${this.number}`;
    this.find("[data-previous]").disabled = index === 0;
    this.find("[data-next]").disabled = index >= this.number - 1;
    this.track && this.#build();
  }

  #build() {
    const { length, plan } = this.track;
    const side = Math.round(Math.sqrt(length));
    const square = this.model.tokenizer === "levels" && side > 1 && side * side === length;
    this.levels = this.model.tokenizer === "levels" && !square;
    this.root.classList.toggle("image", square);
    const row = (kind) => Array.from({ length }, (_, position) => {
      const cell = document.createElement("span");
      cell.className = kind;
      cell.dataset.position = position;
      return cell;
    });
    this.cells = square ? [row("pixel"), row("token heat")] : [row("token heat")];
    this.canvas.replaceChildren(...this.cells.map((cells, i) => {
      const grid = document.createElement("div");
      grid.className = !square ? "text" : i ? "grid map" : "grid";
      grid.style.setProperty("--side", side);
      grid.append(...cells);
      return square ? captioned(grid, i ? "" : "the picture: draw over pixels to erase them") : grid;
    }));
    const width = Math.min(Math.max(Math.round(this.model.characters_per_token ?? 1), 1), MOST_FOG);
    this.fog = "_".repeat(width);
    this.find(".plan figcaption").textContent =
      plan.order ? "The plan, drawn before the first call: when each position is unmasked" : this.unplanned;
    this.drawn = null;
    this.shown = 0;
    this.chart.start(this.track);
  }

  #cell(element, cell, position, now, heat) {
    const state = cell.id === null ? "blank" : cell.call ? (cell.call === now ? "new" : "filled") : "given";
    if (element.dataset.state !== state) {
      element.dataset.state = state;
    }
    if (element.className === "pixel") {
      element.style.setProperty("--level", cell.id === null ? 0 : cell.id / Math.max(this.model.vocab_size - 1, 1));
    } else if (!this.root.classList.contains("image")) {
      // The line ends that frame a text are shown by their sign alone: nobody wants to see two empty lines.
      const frame = cell.piece === "\n" && (position === 0 || position === this.track.length - 1);
      write(element, cell.id === null ? this.fog : frame ? "" : cell.piece + (this.levels ? " " : ""));
      element.classList.toggle("line-end", cell.id !== null && cell.piece.includes("\n"));
    }
    if (cell.id !== null && cell.call) {
      element.style.setProperty("--at", heat(cell).toFixed(3));
    }
  }

  #numbers(now) {
    const { seconds, entropy, bits } = this.track.numbers(now);
    const put = (name, value) => { this.find(`[data-${name}]`).textContent = value; };
    put("calls", `${now} / ${this.track.calls}`);
    put("seconds", seconds === null ? "–" : seconds.toFixed(2));
    put("entropy", entropy === null ? "–" : entropy.toFixed(3));
    put("bits", bits === null ? "–" : bits.toFixed(2));
    put("left", this.track.done ? "" : remaining(this.track));
    const visible = this.track.at(now).filter((cell) => cell.id !== null).length;
    const what = this.root.classList.contains("image") ? "picture" : "text";
    this.canvas.setAttribute("aria-label",
      `Canvas ${this.name}: ${what} with ${visible} of ${this.track.length} tokens after ${now} calls`);
  }

  #listen(inspect, erased, picked) {
    const under = (event) => Number(event.target.closest?.("[data-position]")?.dataset.position ?? -1);
    let painting = null; // in a picture, pixels are erased by drawing over them
    this.canvas.addEventListener("pointerdown", (event) => {
      this.#point(under(event));
      if (this.root.classList.contains("image") && this.cursor >= 0) {
        painting = !this.erased.has(this.cursor);
        event.target.releasePointerCapture?.(event.pointerId); // or a finger would stay with its first pixel
        this.#erase(this.cursor, painting);
        event.preventDefault();
        this.canvas.focus();
      }
    });
    this.canvas.addEventListener("pointerover", (event) => {
      const position = under(event);
      if (position >= 0) {
        inspect(this, position);
        painting !== null && this.#erase(position, painting);
      }
    });
    for (const end of ["pointerup", "pointerleave"]) {
      this.canvas.addEventListener(end, () => {
        if (painting !== null) {
          painting = null;
          erased(this);
        }
      });
    }
    this.find(".plan").addEventListener("pointerover", (event) => {
      if (under(event) >= 0) {
        this.#point(under(event));
        inspect(this, this.cursor);
      }
    });
    this.canvas.addEventListener("keydown", (event) => this.#key(event, inspect, erased));
    for (const [name, by] of [["previous", -1], ["next", 1]]) {
      this.find(`[data-${name}]`).addEventListener("click", () => {
        this.#pick(this.index + by);
        picked();
      });
    }
  }

  #key(event, inspect, erased) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && this.track) {
      this.#point(Math.min(Math.max(this.cursor + step, 0), this.track.length - 1));
      inspect(this, this.cursor);
    } else if ((event.key === "Delete" || event.key === "Backspace") && this.erase()) {
      erased(this);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  #erase(position, gone) {
    gone ? this.erased.add(position) : this.erased.delete(position);
    this.cells.forEach((set) => set[position].classList.toggle("erased", gone));
  }

  #point(position) {
    this.cells?.forEach((set) => set[this.cursor]?.classList.remove("cursor"));
    this.cursor = position;
    this.cells?.forEach((set) => set[position]?.classList.add("cursor"));
  }

  #selected() {
    const selection = window.getSelection();
    if (!selection.rangeCount || selection.isCollapsed) {
      return [];
    }
    return (this.cells?.[0] ?? []).flatMap((cell, i) => (selection.containsNode(cell, true) ? [i] : []));
  }
}
