// A grid that a person fills cell by cell: what is left empty is for the model.

import { boxEdges, sideOf } from "./views.js";

/** Puzzles with one solution, by side; a dot is an empty cell. */
const EXAMPLES = {
  4: "1...  ..3.  .4..  ...2",
  6: ".2..6. ..124. ....1. .36... .5.... 3.26..",
  9: "53..7.... 6..195... .98....6. 8...6...3 4..8.3..1 7...2...6 .6....28. ...419..5 ....8..79",
};

export class Puzzle {
  constructor(root) {
    this.root = root;
    this.cells = [];
    root.addEventListener("keydown", (event) => this.#key(event));
    root.addEventListener("input", (event) => this.#typed(event));
    root.addEventListener("paste", (event) => this.#pasted(event));
  }

  /** Make the cells for a model, with its example. */
  fit(model) {
    if (model.id === this.model?.id) {
      return;
    }
    this.model = model;
    this.side = sideOf(model.length);
    this.root.style.setProperty("--side", this.side);
    this.cells = Array.from({ length: model.length }, (_, i) => {
      const { right, below } = boxEdges(i, this.side);
      const cell = Object.assign(document.createElement("input"), { type: "text", autocomplete: "off", spellcheck: false });
      cell.setAttribute("aria-label", `row ${Math.floor(i / this.side) + 1}, column ${(i % this.side) + 1}`);
      cell.dataset.cell = i;
      cell.classList.toggle("right", right);
      cell.classList.toggle("below", below);
      return cell;
    });
    this.root.replaceChildren(...this.cells);
    this.write(EXAMPLES[this.side] ?? "");
  }

  /** Ids, null where a cell is empty or has no symbol of the model. */
  get value() {
    return this.cells.map((cell) => {
      const id = this.model.symbols.indexOf(cell.value.trim());
      return id < 0 ? null : id;
    });
  }

  set value(ids) {
    this.cells.forEach((cell, i) => { cell.value = ids[i] == null ? "" : this.model.symbols[ids[i]]; });
    this.#check();
  }

  /** Fill it from a text: a symbol or a dot, a zero or an underscore for each cell. */
  write(text) {
    const symbols = [...text.replace(/[\s|+-]/g, "")];
    this.cells.forEach((cell, i) => {
      const symbol = symbols[i] ?? "";
      cell.value = this.model.symbols.includes(symbol) ? symbol : "";
    });
    this.#check();
  }

  #key(event) {
    const at = Number(event.target.dataset.cell);
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.side, ArrowDown: this.side }[event.key];
    if (by && this.cells[at + by]) {
      event.preventDefault();
      this.cells[at + by].focus();
      this.cells[at + by].select();
    }
  }

  #typed(event) {
    const [cell, at] = [event.target, Number(event.target.dataset.cell)];
    if (["0", ".", "_"].includes(cell.value) && !this.model.symbols.includes(cell.value)) {
      cell.value = "";
    }
    this.#check();
    const longer = this.model.symbols.some((symbol) => symbol !== cell.value && symbol.startsWith(cell.value));
    if (cell.value !== "" && !longer && !cell.ariaInvalid) {
      this.cells[at + 1]?.focus();
      this.cells[at + 1]?.select();
    }
  }

  #pasted(event) {
    const text = event.clipboardData.getData("text");
    if (text.replace(/\s/g, "").length >= this.cells.length) {
      event.preventDefault();
      this.write(text);
    }
  }

  #check() {
    for (const cell of this.cells) {
      const wrong = cell.value.trim() !== "" && !this.model.symbols.includes(cell.value.trim());
      wrong ? cell.setAttribute("aria-invalid", "true") : cell.removeAttribute("aria-invalid");
      cell.title = wrong ? `The model has no ${cell.value}: its symbols are ${this.model.symbols.join(" ")}` : "";
    }
  }
}
