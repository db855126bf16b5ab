// How one sequence is shown: as text, as a picture, as a grid of symbols. A molecule has a file of its own.

import { captioned, write } from "./cells.js";

const MOST_FOG = 6; // a blank is about as wide as its token will be, within reason
const BOXES = { 4: [2, 2], 6: [2, 3], 9: [3, 3] }; // rows and columns of a box, by the side of the grid

/** The side of a square of so many cells, or null. */
export function sideOf(length) {
  const side = Math.round(Math.sqrt(length));
  return side > 1 && side * side === length ? side : null;
}

/** Whether the cell right of, or below, position i begins another box. */
export function boxEdges(i, side) {
  const [rows, columns] = BOXES[side] ?? [side, side];
  const [row, column] = [Math.floor(i / side), i % side];
  return { right: (column + 1) % columns === 0 && column + 1 < side, below: (row + 1) % rows === 0 && row + 1 < side };
}

/** Cells in a row, an element for each position. */
export function cellsOf(length, kind) {
  return Array.from({ length }, (_, position) => {
    const cell = document.createElement("span");
    cell.className = kind;
    cell.dataset.position = position;
    return cell;
  });
}

/** blank, ghost (a guess that may still change), given, filled, or new: what came with the call at the playhead. */
export function stateOf(cell, ghost, now) {
  if (cell.id === null) {
    return ghost ? "ghost" : "blank";
  }
  return cell.call ? (cell.call === now ? "new" : "filled") : "given";
}

export class View {
  /** alone: whether the pane has no other sequence, so that there is room for more. */
  constructor(model, track, alone) {
    Object.assign(this, { model, track, alone });
    this.root = document.createElement("div");
    this.root.className = "view";
    this.sets = []; // elements by position, once or more often
  }

  /** Show the cells after `now` calls; ghosts: guesses by position; heat(cell) is from 0 to 1. */
  show({ cells, ghosts, now, heat }) {
    for (const set of this.sets) {
      cells.forEach((cell, position) => {
        const [element, ghost] = [set[position], ghosts.get(position)];
        const state = stateOf(cell, ghost, now);
        if (element.dataset.state !== state) {
          element.dataset.state = state;
        }
        element.classList.toggle("corrected", state === "new" && Boolean(cell.corrected));
        element.classList.toggle("changed", state === "ghost" && ghost.changed);
        if (cell.id !== null && cell.call) {
          element.style.setProperty("--at", heat(cell).toFixed(3));
        }
        this.fill(element, cell, ghost, position);
      });
    }
  }

  get what() {
    return "text";
  }
}

export class TextView extends View {
  constructor(model, track, alone) {
    super(model, track, alone);
    this.sets = [cellsOf(track.length, "token heat")];
    this.root.classList.add("text");
    this.root.append(...this.sets[0]);
    const width = Math.min(Math.max(Math.round(model.characters_per_token ?? 1), 1), MOST_FOG);
    this.fog = "_".repeat(width);
    this.gap = model.tokenizer === "levels" ? " " : "";
  }

  fill(element, cell, ghost, position) {
    const piece = cell.piece ?? ghost?.piece ?? null;
    // The line ends that frame a text are shown by their sign alone: nobody wants to see two empty lines.
    const frame = piece === "\n" && (position === 0 || position === this.track.length - 1);
    write(element, piece === null ? this.fog : frame ? "" : piece + this.gap);
    element.classList.toggle("line-end", piece !== null && piece.includes("\n"));
  }
}

/** Grey levels; alone, with a second grid beside it that says when each pixel came or how sure it was. */
export class ImageView extends View {
  constructor(model, track, alone) {
    super(model, track, alone);
    const kinds = alone ? ["pixel", "token heat"] : ["pixel"];
    this.sets = kinds.map((kind) => cellsOf(track.length, kind));
    this.root.classList.add("image");
    this.root.append(...this.sets.map((cells, i) => {
      const grid = gridOf(cells, sideOf(track.length), i ? "grid map" : "grid");
      return alone ? captioned(grid, i ? "" : "the picture: draw over pixels to erase them") : grid;
    }));
  }

  show(shown) {
    super.show(shown);
    if (this.alone) {
      this.root.querySelector("figure:nth-child(2) figcaption").textContent =
        shown.colour === "when" ? "when it came" : "how sure";
    }
  }

  fill(element, cell, ghost) {
    if (element.className.startsWith("pixel")) {
      const id = cell.id ?? ghost?.id ?? 0;
      element.style.setProperty("--level", id / Math.max(this.model.vocab_size - 1, 1));
    }
  }

  get what() {
    return "picture";
  }
}

/** Symbols in a square, as in a sudoku: each cell says how sure the model was of it. */
export class GridView extends View {
  constructor(model, track, alone) {
    super(model, track, alone);
    this.side = sideOf(track.length);
    this.sets = [cellsOf(track.length, "token heat")];
    this.sets[0].forEach((cell, i) => {
      const { right, below } = boxEdges(i, this.side);
      cell.classList.toggle("right", right);
      cell.classList.toggle("below", below);
      cell.append(document.createElement("b"), document.createElement("small"));
    });
    this.verdict = document.createElement("p");
    this.verdict.className = "verdict hint";
    this.root.classList.add("symbols");
    this.root.append(gridOf(this.sets[0], this.side, "grid"), this.verdict);
  }

  show(shown) {
    super.show(shown);
    const wrong = this.model.symbols?.length === this.side ? conflicts(shown.cells, this.side) : new Set();
    this.sets[0].forEach((element, i) => element.classList.toggle("conflict", wrong.has(i)));
    const open = shown.cells.some((cell) => cell.id === null);
    this.verdict.textContent = this.model.symbols?.length !== this.side || (open && !wrong.size) ? ""
      : wrong.size ? `${wrong.size} cells break the rule: a symbol twice in a row, a column or a box.`
        : "Every row, column and box has each symbol once.";
  }

  fill(element, cell, ghost) {
    const [symbol, sure] = element.children;
    const text = (cell.piece ?? ghost?.piece ?? "").trim();
    if (symbol.textContent !== text) {
      symbol.textContent = text;
    }
    sure.textContent = cell.id !== null && cell.call ? `${Math.round(100 * cell.probability)}%` : "";
  }

  get what() {
    return "grid";
  }
}

/** The positions whose symbol stands twice in a row, a column or a box. */
export function conflicts(cells, side) {
  const [rows, columns] = BOXES[side] ?? [0, 0];
  const groups = new Map();
  cells.forEach((cell, i) => {
    if (cell.id !== null) {
      const [row, column] = [Math.floor(i / side), i % side];
      const box = rows ? `b${Math.floor(row / rows)},${Math.floor(column / columns)}` : `none${i}`;
      for (const name of [`r${row}`, `c${column}`, box]) {
        const key = `${name}=${cell.id}`;
        groups.set(key, [...(groups.get(key) ?? []), i]);
      }
    }
  });
  return new Set([...groups.values()].filter((group) => group.length > 1).flat());
}

function gridOf(cells, side, className) {
  const grid = Object.assign(document.createElement("div"), { className });
  grid.style.setProperty("--side", side);
  grid.append(...cells);
  return grid;
}
