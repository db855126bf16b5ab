// What a run starts from: a text with blanks, a prompt, nothing, or a canvas whose tokens were erased by hand.

import { Puzzle } from "./puzzle.js";
import { fillsBlanks, isShort, isText } from "./settings.js";
import { sideOf } from "./views.js";

const BPE = new Set(["bpe", "gpt2", "wordpiece", "metaspace"]);
const HOLES = /_+/g;
const APART = /_{3,}|(?<![\p{L}\p{N}_])_{1,2}(?![\p{L}\p{N}_])/gu; // one or two inside a word belong to it
const EXAMPLES = {
  prose: {
    text: "In the beginning God created ________________________ the earth was without form, and void; and "
      + "________________ upon the face of the deep. And the Spirit of God ________________ the waters.",
    prompt: "And God said, ",
  },
  metaspace: { // the models of stories
    text: "One day, a little girl named Lily went to the ________ with her ____. She saw a big ________ and ran to it. "
      + "\"Can I ________________?\" asked Lily. Her mom smiled and said, \"Yes, but be ________.\"",
    prompt: "Once upon a time, there was a little",
  },
  letters: {
    text: "in the beginning god created ____________ and the earth was ____________",
    prompt: "in the beginning ",
  },
  smiles: { text: "CC(=O)Nc1ccc(____)cc1", prompt: "CC(=O)" },
  selfies: { text: "[C][C]___[O]", prompt: "[C][C]" },
};

const element = (id) => document.getElementById(id);

function exampleFor(model) {
  if (isShort(model)) { // names or the like, in letters that are not known here
    return { text: "_".repeat(Math.min(model.length - 1, 8)), prompt: "" };
  }
  return EXAMPLES[model.tokenizer] ?? EXAMPLES[model.tokenizer === "characters" ? "letters" : "prose"];
}

function isGrid(model) {
  return model?.display === "grid" && sideOf(model.length ?? 0) !== null;
}

/** Why no text with blanks can be typed, in a line; empty if one can. */
function whyNoBlanks(used) {
  const drawn = used.find((model) => !isText(model));
  if (drawn) {
    return isGrid(drawn) && fillsBlanks(drawn)
      ? `No Blanks and no Prompt: ${drawn.id} makes grids, which are typed as a puzzle.`
      : `No Blanks and no Prompt: what ${drawn.id} makes is no text.`;
  }
  const forward = used.find((model) => !fillsBlanks(model));
  return forward ? `No Blanks: ${forward.id} sees only what comes before, so it continues a prompt.` : "";
}

/** How many tokens the blanks of a text stand for, about: [blanks, tokens]. */
export function countBlanks(text, model) {
  const width = BPE.has(model.tokenizer) ? model.characters_per_token ?? 4 : 1;
  const runs = text.match(BPE.has(model.tokenizer) ? APART : HOLES) ?? [];
  return [runs.length, runs.reduce((sum, run) => sum + Math.max(1, Math.round(run.length / width)), 0)];
}

export class Composer {
  constructor() {
    this.canvas = null;
    this.examples = {};
    this.puzzle = new Puzzle(element("puzzle"));
    element("clear").addEventListener("click", () => this.puzzle.write(""));
    element("sources").addEventListener("change", () => this.#show());
    element("text").addEventListener("input", () => this.#count());
    element("punch").addEventListener("click", () => this.punch());
    element("scatter").addEventListener("click", () => this.#scatter());
    element("text").addEventListener("keydown", (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "b") {
        event.preventDefault();
        this.punch();
      }
    });
  }

  get source() {
    return document.querySelector("[name=source]:checked").value;
  }

  set source(name) {
    document.querySelector(`[name=source][value=${name}]`).checked = true;
    this.#show();
  }

  /** Start from this, with the model's own example. */
  example(name) {
    if (this.examples[name] !== undefined) {
      element(name).value = this.examples[name];
    }
    this.source = name;
  }

  /** The part of a request that says what to fill. */
  get value() {
    const length = element("length").value === "" ? {} : { length: Number(element("length").value) };
    return {
      text: { text: element("text").value }, canvas: { canvas: this.canvas },
      prompt: { prompt: element("prompt").value, ...length }, empty: length,
      puzzle: this.source === "puzzle" ? { canvas: this.puzzle.value } : {},
    }[this.source];
  }

  set value({ text, prompt, length, canvas }) {
    element("length").value = length ?? "";
    if (text !== undefined) {
      element("text").value = text;
    }
    if (prompt !== undefined) {
      element("prompt").value = prompt;
    }
    if (canvas !== undefined) {
      this.erased(canvas);
    }
    this.source = canvas ? (isGrid(this.model) ? "puzzle" : "canvas") : text !== undefined ? "text" : prompt !== undefined ? "prompt" : "empty";
  }

  /** Fit a model: its example, and what it can start from at all, which depends on the models of all panes. */
  adapt(model, used) {
    const [blanks, words] = [used.every(fillsBlanks), used.every(isText)];
    const another = model.id !== this.model?.id;
    if (another) {
      this.canvas = null; // its ids mean something else to another model
      element("canvas-source").hidden = true;
    }
    this.model = model;
    const grid = blanks && isGrid(model);
    element("puzzle-source").hidden = !grid;
    if (grid) {
      this.puzzle.fit(model);
    }
    this.#offer("puzzle", grid);
    this.#offer("text", blanks && words);
    this.#offer("prompt", words);
    this.#offer("canvas", blanks && this.canvas?.length > 0);
    const reason = whyNoBlanks(used);
    element("source-help").textContent = reason;
    element("source-help").hidden = !reason;
    const example = exampleFor(model);
    for (const name of ["text", "prompt"]) {
      const field = element(name);
      if (field.value === "" || field.value === this.examples[name]) {
        field.value = example[name];
      }
    }
    this.examples = example;
    element("length").placeholder = model.length ?? "";
    if (another || document.querySelector("[name=source]:checked").disabled) {
      this.source = grid ? "puzzle" : words && blanks && model.display === "text" ? "text" : words && !blanks ? "prompt" : "empty";
    }
    this.#show();
  }

  /** Take a canvas with holes: the next run fills them. */
  erased(canvas) {
    if (isGrid(this.model)) {
      this.puzzle.value = canvas;
      this.source = "puzzle";
      return;
    }
    this.canvas = canvas;
    element("canvas-source").hidden = false;
    this.#offer("canvas", true);
    this.source = "canvas";
  }

  /** Turn the selection of the text into a blank of the same length, or the word at the cursor where there is none. */
  punch() {
    const field = element("text");
    let [start, end] = [field.selectionStart, field.selectionEnd];
    if (start === end) {
      start -= field.value.slice(0, start).match(/\S*$/)[0].length;
      end += field.value.slice(end).match(/^\S*/)[0].length;
    }
    // Spaces at the edges stay: a blank between two words is not glued to them.
    const chosen = field.value.slice(start, end);
    start += chosen.match(/^\s*/)[0].length;
    end = Math.max(start, end - chosen.match(/\s*$/)[0].length);
    if (start < end) {
      this.#replace(start, end, field.value.slice(start, end).replace(/[^\n]/g, "_"));
    }
  }

  #scatter() {
    const field = element("text");
    const chance = () => Math.random() < 0.3;
    const holed = field.value.replace(/[\p{L}\p{N}]{2,}/gu, (word) => (chance() ? "_".repeat(word.length) : word));
    this.#replace(0, field.value.length, holed);
  }

  #replace(start, end, text) {
    const field = element("text");
    field.focus();
    field.setSelectionRange(start, end);
    // The only way that the browser's own undo knows of.
    if (!document.execCommand("insertText", false, text)) {
      field.setRangeText(text, start, end, "end");
    }
    field.setSelectionRange(start + text.length, start + text.length);
    this.#count();
  }

  #offer(name, possible) {
    const input = document.querySelector(`[name=source][value=${name}]`);
    input.disabled = !possible;
  }

  #show() {
    const source = this.source;
    for (const part of document.querySelectorAll("[data-source]")) {
      part.hidden = part.dataset.source !== source;
    }
    element("length-field").hidden = !["prompt", "empty"].includes(source);
    const holes = (this.canvas ?? []).filter((id) => id === null).length;
    element("canvas-help").textContent =
      `The canvas as it is shown, with ${holes} of ${this.canvas?.length ?? 0} tokens erased. Run fills them again.`;
    this.#count();
  }

  #count() {
    const [blanks, tokens] = countBlanks(element("text").value, this.model ?? {});
    const counted = `${blanks} ${blanks === 1 ? "blank" : "blanks"}, about ${tokens} ${tokens === 1 ? "token" : "tokens"}`;
    element("blanks").textContent = blanks ? counted : "no blank yet";
  }
}
