// A few runs worth a click, made of the models that are there. The first runs by itself.

import { PRESETS } from "./presets.js";
import { fillsBlanks, isShort } from "./settings.js";

const PREFERRED = ["stories-masked", "kjv"]; // among the models of text that fill blanks

/** The runs to offer: {title, text, start: {model?, source?, preset?, seed?, number?, ahead?, decoding?}}. */
export function examples(models) {
  const masked = models.filter(fillsBlanks);
  const shown = (display) => masked.filter((model) => model.display === display);
  const texts = shown("text").filter((model) => model.tokenizer !== "levels");
  const prose = PREFERRED.map((name) => texts.find((model) => model.id === name)).find(Boolean) ?? texts[0];
  const [picture] = shown("image");
  const [molecule] = shown("molecule");
  const [grid] = shown("grid");
  // Guesses settle fastest where the network sees its tokens in the order of the plan.
  const ahead = masked.find((model) => model.kind === "any-order" && model.display === "text") ?? prose;
  const story = models.find((model) => model.kind === "block" && model.display === "text");
  return [
    prose && isShort(prose) && {
      title: "Make samples", text: "Eight at once, in a random order.",
      start: { model: prose.id, source: "empty", number: 8, seed: 1 },
    },
    prose && !isShort(prose) && {
      title: "Fill the blanks", text: "Holes in a text, filled with both sides in view.",
      start: { model: prose.id, source: "text", seed: SEEDS.text },
    },
    story && {
      title: "Write a story", text: "From left to right, the order that this model knows best.",
      start: { model: story.id, source: "empty", seed: SEEDS.story },
    },
    molecule && {
      title: "Make molecules", text: "Six at once, from left to right.",
      start: { model: molecule.id, source: "empty", number: 6, seed: SEEDS.molecule },
    },
    picture && {
      title: "Draw digits", text: "Sixteen pictures, pixel by pixel.",
      start: { model: picture.id, source: "empty", number: 16, seed: SEEDS.picture },
    },
    grid && {
      title: "Solve a puzzle", text: "Cell by cell, the surest first.",
      start: { model: grid.id, source: "puzzle", decoding: "margin" },
    },
    ahead && !isShort(ahead) && {
      title: "Look ahead", text: "Guesses are grey until they are accepted.",
      start: { model: ahead.id, source: "prompt", decoding: "", ahead: "8", seed: SEEDS.ahead },
    },
    PRESETS.float32.possible(models) && {
      title: "See float32 truncation", text: "Exact draws next to published float32 draws.",
      start: { preset: "float32" },
    },
    PRESETS["left-to-right"].possible(models) && {
      title: "Race left to right", text: "Any order beside the usual one.",
      start: { preset: "left-to-right" },
    },
  ].filter(Boolean);
}

/** Seeds whose runs read well with the models of the box. */
const SEEDS = { text: 7, molecule: 1, picture: 1, ahead: 1, story: 1 };

/** Put them into a bar; start(example) runs one. */
export function offer(bar, models, start) {
  bar.replaceChildren(...examples(models).map((example) => {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "card", title: example.text });
    const title = Object.assign(document.createElement("b"), { textContent: example.title });
    const text = Object.assign(document.createElement("span"), { textContent: example.text });
    button.append(title, text);
    button.addEventListener("click", () => start(example.start));
    return button;
  }));
}
