// What there is to see before the first run: a few runs worth a click, made of the models that are there.

import { PRESETS } from "./presets.js";
import { fillsBlanks, isText } from "./settings.js";

const MOLECULES = new Set(["smiles", "selfies"]);

/** The runs to offer: {title, text, start: {model?, source?, preset?}}. */
export function examples(models) {
  const masked = models.filter(fillsBlanks);
  const prose = masked.find((model) => isText(model) && !MOLECULES.has(model.tokenizer));
  const picture = masked.find((model) => !isText(model));
  const molecule = masked.find((model) => MOLECULES.has(model.tokenizer));
  return [
    prose && {
      title: "Fill the blanks", text: "Holes in the middle of a text, filled with both sides in view.",
      start: { model: prose.id, source: "text" },
    },
    prose && {
      title: "Write from a prompt", text: "The rest of a text, in no particular order.",
      start: { model: prose.id, source: "prompt" },
    },
    picture && {
      title: "Draw a picture", text: "Pixel by pixel, from nothing. Then erase some and have them drawn again.",
      start: { model: picture.id, source: "empty" },
    },
    molecule && {
      title: "Make a molecule", text: "Atoms, branches and rings, each at its own time.",
      start: { model: molecule.id, source: "empty" },
    },
    PRESETS.float32.possible(models) && {
      title: "See what float32 does", text: "Exact draws beside those of published code: same model, same seed, less to say.",
      start: { preset: "float32" },
    },
    PRESETS["left-to-right"].possible(models) && {
      title: "Race left to right", text: "A masked model beside one that writes from the beginning.",
      start: { preset: "left-to-right" },
    },
  ].filter(Boolean);
}

/** Put them on the stage; start(example) runs one. */
export function welcome(stage, models, start) {
  const box = Object.assign(document.createElement("div"), { id: "welcome" });
  const cards = examples(models).map((example) => {
    const card = Object.assign(document.createElement("button"), { type: "button", className: "card" });
    const title = Object.assign(document.createElement("b"), { textContent: example.title });
    const text = Object.assign(document.createElement("span"), { textContent: example.text });
    card.append(title, text);
    card.addEventListener("click", () => start(example.start));
    return card;
  });
  const lead = Object.assign(document.createElement("p"), { textContent: "Press Run, or begin with one of these." });
  box.append(lead, ...cards);
  stage.replaceChildren(box);
}
