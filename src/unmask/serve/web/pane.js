// One pane: the sequences of a run side by side, the numbers and the plan of the one that is looked at.

import { remaining } from "./cells.js";
import { PlanChart } from "./chart.js";
import { MoleculeView } from "./molecule.js";
import { surprise, Track } from "./track.js";
import { GridView, ImageView, sideOf, TextView } from "./views.js";

const UNSURE_BITS = 10; // a token this surprising, or more, has the colour of the least sure
const VIEWS = { text: TextView, molecule: MoleculeView, image: ImageView, grid: GridView };

function viewOf(model, track, alone) {
  const square = sideOf(track.length) !== null;
  const kind = ["image", "grid"].includes(model.display) && !square ? "text" : model.display;
  return new (VIEWS[kind] ?? TextView)(model, track, alone);
}

export class Pane {
  /** inspect(pane, position): a token was pointed at; erased(pane): some were erased; picked(): another sequence. */
  constructor(name, { inspect, erased, picked }) {
    this.name = name;
    this.root = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.canvas = this.find(".canvas");
    this.chart = new PlanChart(this.find(".plan"));
    this.tracks = [];
    this.views = [];
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
    Object.assign(this, { model, unplanned, number, tracks: [], views: [], index: 0, cursor: -1, erased: new Set() });
    this.find("h2").textContent = this.name ? `${this.name} · ${model.id}` : model.id;
    this.find(".about").textContent = about;
    this.root.dataset.display = model.display;
    this.root.classList.toggle("mono", ["smiles", "selfies"].includes(model.tokenizer));
    this.root.classList.toggle("many", number > 1);
    this.canvas.replaceChildren();
    this.canvas.setAttribute("aria-label", `Canvas ${this.name}, empty`);
    this.note(null);
  }

  take(event, data) {
    const index = data.index ?? 0;
    if (event === "plan") {
      this.tracks[index] = new Track(data);
      this.#build(index);
    } else if (event === "step") {
      this.tracks[index].add(data);
    } else if (event === "done") {
      this.tracks[index].done = data;
    }
  }

  /** Draw every canvas, the numbers and the plan after so many calls, or as many as there are. */
  show(calls, colour) {
    this.tracks.forEach((track, index) => {
      const now = Math.min(calls, track.steps.length);
      const view = this.views[index];
      const key = `${now} ${colour} ${track.calls} ${Boolean(track.done)}`;
      if (key !== view.drawn) {
        view.drawn = key;
        view.show({ cells: track.at(now), ghosts: track.guesses(now), now, heat: this.#heat(track, colour), colour });
      }
    });
    if (this.track) {
      const now = this.shown = Math.min(calls, this.track.steps.length);
      const key = `${this.index} ${now} ${colour} ${this.track.calls} ${this.chart.width} ${Boolean(this.track.done)} ${this.done}`;
      if (key !== this.drawn) {
        this.drawn = key;
        this.#numbers(now);
        this.#which();
        this.chart.show(now, this.#heat(this.track, colour));
      }
    }
  }

  /** The token at a position, in words. */
  describe(position) {
    const cell = this.track?.at(this.shown)[position];
    if (!cell) {
      return "";
    }
    const of = this.number > 1 ? `sequence ${this.index + 1}, ` : "";
    const where = `${this.name ? `${this.name}, ` : ""}${of}position ${position}`;
    if (cell.id === null) {
      const planned = this.track.plan.order?.indexOf(position) ?? -1;
      const tau = planned >= 0 ? this.track.plan.tau?.[planned] : null;
      const ghost = this.track.guesses(this.shown).get(position);
      const guess = ghost ? `, “${ghost.piece}” as a guess that may still change` : "";
      return `${where}: a blank${tau != null ? `, to be filled at τ ${tau.toFixed(3)}` : ""}${guess}.`;
    }
    const token = `${where}: “${cell.piece.replace(/\n/g, "↵")}”, id ${cell.id}`;
    if (!cell.call) {
      return `${token}, given.`;
    }
    const bits = cell.probability > 0 ? `, ${surprise(cell.probability).toFixed(2)} bits` : "";
    const tau = cell.tau === null ? "" : `, τ ${cell.tau.toFixed(3)}`;
    const sure = `probability ${cell.probability.toPrecision(3)}${bits}`;
    const corrected = cell.corrected ? ", another token had been guessed" : "";
    return `${token}, call ${cell.call} of ${this.track.calls}${tau}, ${sure}${corrected}.`;
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
  }

  #heat(track, colour) {
    return colour === "when" ? (cell) => (cell.call - 1) / Math.max(track.calls - 1, 1)
      : (cell) => Math.max(0, 1 - surprise(cell.probability) / UNSURE_BITS);
  }

  #build(index) {
    const view = viewOf(this.model, this.tracks[index], this.number === 1);
    const sheet = document.createElement("section");
    sheet.className = "sheet";
    sheet.dataset.index = index;
    if (this.number > 1) {
      sheet.setAttribute("aria-label", `Sequence ${index + 1} of ${this.number}`);
    }
    sheet.append(view.root);
    this.views[index] = view;
    // Plans may come in any order.
    const behind = [...this.canvas.children].find((other) => Number(other.dataset.index) > index) ?? null;
    this.canvas.insertBefore(sheet, behind);
    if (index === this.index) {
      this.#pick(index);
    }
  }

  /** Look at one of the sequences: its numbers and its plan. */
  #pick(index) {
    this.views[this.index]?.sets.flat().forEach((cell) => cell.classList.remove("erased", "cursor"));
    Object.assign(this, { index, drawn: null, shown: this.shown ?? 0, cursor: -1, erased: new Set() });
    for (const sheet of this.canvas.children) {
      sheet.classList.toggle("picked", this.number > 1 && Number(sheet.dataset.index) === index);
    }
    this.#which();
    this.find("[data-caption]").textContent =
      this.track.plan.order ? "The plan, drawn before the first call: when each position is unmasked" : this.unplanned;
    this.chart.start(this.track);
  }

  /** Which sequence is looked at, and how many are molecules once all are done. */
  #which() {
    const valid = this.tracks.filter((track) => track.done?.valid).length;
    const molecules = this.done && this.tracks.some((track) => "valid" in track.done);
    this.find("[data-which]").textContent = this.number < 2 ? "" : `sequence ${this.index + 1} of ${this.number}`
      + (molecules ? ` · ${valid} of ${this.number} are valid molecules` : "");
  }

  #numbers(now) {
    const { seconds, entropy, bits } = this.track.numbers(now);
    const put = (name, value) => { this.find(`[data-${name}]`).textContent = value; };
    put("calls", `${now} / ${this.track.calls}`);
    put("seconds", seconds === null ? "–" : seconds.toFixed(2));
    put("entropy", entropy === null ? "–" : entropy.toFixed(3));
    put("bits", bits === null ? "–" : bits.toFixed(2));
    put("left", this.track.done ? "" : remaining(this.track));
    const cells = this.track.at(now);
    const visible = cells.filter((cell) => cell.id !== null).length;
    const drawn = cells.filter((cell) => cell.id !== null && cell.call).length;
    this.find("[data-ahead]").hidden = !this.track.ahead;
    put("per", now ? (drawn / now).toFixed(2) : "–");
    const of = this.number > 1 ? `sequence ${this.index + 1} of ${this.number}, a ` : "";
    this.canvas.setAttribute("aria-label", `Canvas ${this.name}: ${of}${this.views[this.index].what} with `
      + `${visible} of ${this.track.length} tokens after ${now} calls`);
  }

  #listen(inspect, erased, picked) {
    const under = (event) => Number(event.target.closest?.("[data-position]")?.dataset.position ?? -1);
    const sheet = (event) => Number(event.target.closest?.(".sheet")?.dataset.index ?? this.index);
    let painting = null; // in a picture, pixels are erased by drawing over them
    this.canvas.addEventListener("pointerdown", (event) => {
      const other = sheet(event) !== this.index;
      if (other && this.tracks[sheet(event)]) {
        this.#pick(sheet(event));
        picked();
      }
      this.#point(under(event));
      if (!other && this.views[this.index]?.what === "picture" && this.cursor >= 0) {
        painting = !this.erased.has(this.cursor);
        event.target.releasePointerCapture?.(event.pointerId); // or a finger would stay with its first pixel
        this.#erase(this.cursor, painting);
        event.preventDefault();
        this.canvas.focus();
      }
    });
    this.canvas.addEventListener("pointerover", (event) => {
      const position = under(event);
      if (position >= 0 && sheet(event) === this.index) {
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
    this.canvas.addEventListener("keydown", (event) => this.#key(event, inspect, erased, picked));
  }

  #key(event, inspect, erased, picked) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const other = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step && this.track) {
      this.#point(Math.min(Math.max(this.cursor + step, 0), this.track.length - 1));
      inspect(this, this.cursor);
    } else if (other && this.tracks[this.index + other]) {
      this.#pick(this.index + other);
      picked();
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
    this.views[this.index].sets.forEach((set) => set[position].classList.toggle("erased", gone));
  }

  #point(position) {
    const sets = this.views[this.index]?.sets ?? [];
    sets.forEach((set) => set[this.cursor]?.classList.remove("cursor"));
    this.cursor = position;
    sets.forEach((set) => set[position]?.classList.add("cursor"));
  }

  #selected() {
    const selection = window.getSelection();
    if (!selection.rangeCount || selection.isCollapsed) {
      return [];
    }
    const cells = this.views[this.index]?.sets[0] ?? [];
    return cells.flatMap((cell, i) => (selection.containsNode(cell, true) ? [i] : []));
  }
}
