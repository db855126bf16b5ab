// The settings of one pane: which of them apply to a model and a sampler, what they mean, and how they are written.

export const NAMES = ["model", "sampler", "steps", "predictor", "decoding", "ahead", "draw", "temperature", "top_p", "top_k"];
export const CHOICES = { sampler: "samplers", predictor: "predictors", decoding: "decodings", draw: "draws" }; // of a model
export const WINDOWS = ["auto", "2", "4", "8", "16", "32"];
const NUMBERS = new Set(["steps", "temperature", "top_p", "top_k"]);
const DEFAULTS = {
  sampler: "first-hitting", predictor: "first-order", decoding: "", draw: "exponential-race", temperature: 1,
};

const SAMPLERS = {
  "first-hitting": "Exact: one token per network call, at its own hitting time.",
  parallel: "As many calls as steps: several tokens at once, drawn independently.",
  ancestral: "The reversed process on an even grid of N steps. A step in which nothing happens costs no call.",
  "published-ancestral": "As other codebases run it: token and mask in one float32 draw. For comparison: it is biased.",
  "published-euler": "SEDD's Euler steps, token and mask in one float32 draw. For comparison: it is biased.",
  "published-tweedie": "SEDD's tau-leaping, token and mask in one float32 draw. For comparison: it is biased.",
  "published-law": "The distribution of published-ancestral, at any N in seconds: an exact run that rejects what float32 would lose.",
};
const CALLED = {
  "": "the sampler's", "first-order": "first order", extrapolate: "second order, extrapolate",
  correct: "second order, correct",
};
const PREDICTORS = {
  extrapolate: "Second order: extrapolates from the call before.",
  correct: "Second order: masks the last group again and draws it once more.",
  auto: "Extrapolates up to 128 steps, corrects beyond.",
};
const AHEAD = "Each call also guesses later tokens, shown in grey until they are accepted or corrected. The text is the "
  + "same, in fewer calls.";
const IN_READING_ORDER = "From left to right. With one token per call it samples the model exactly, as every order does that "
  + "is drawn in advance.";
const LOOKS = "This order uses the predictions of the network to choose the next position. Its samples do not follow the "
  + "model's distribution.";
const LEFT_TO_RIGHT = "A left-to-right model draws one token per call from left to right: there is no sampler to choose.";

export function isText(model) {
  return ["text", "molecule"].includes(model.display) && model.tokenizer !== "levels";
}

/** Whether a model writes rows of a few characters, such as names: too few for a sentence with blanks. */
export function isShort(model) {
  return model.tokenizer === "characters" && model.length !== null && model.length < 64;
}

/** Whether it sees both sides of a blank; the others continue a text. */
export function fillsBlanks(model) {
  return !["left-to-right", "block"].includes(model.kind);
}

/** The settings that mean something together with the others; the rest is neither sent nor shared. */
export function applicable(model, chosen) {
  if (model.kind === "left-to-right") {
    return new Set(["model", "ahead", "draw", "temperature", "top_p", "top_k"]);
  }
  if (chosen.sampler?.startsWith("published-")) {
    return new Set(["model", "sampler", "steps"]);
  }
  const names = new Set(NAMES);
  if (model.kind === "block") {
    names.delete("predictor");
    names.delete("ahead");
  }
  if (chosen.decoding || (chosen.sampler ?? "first-hitting") !== "first-hitting" || !looksAhead(chosen.predictor)) {
    names.delete("ahead"); // it is for one token per step
  }
  if (chosen.decoding) {
    names.delete("sampler");
    names.delete("predictor");
  } else if ((chosen.sampler ?? "first-hitting") === "first-hitting") {
    names.delete("steps");
  }
  return names;
}

function looksAhead(predictor) {
  return (predictor ?? "first-order") === "first-order";
}

/** One sentence on the choice, for who meets it the first time. */
export function explanation(model, chosen) {
  const ahead = chosen.ahead && applicable(model, chosen).has("ahead") ? AHEAD : "";
  if (model.kind === "left-to-right") {
    return [LEFT_TO_RIGHT, ahead].filter(Boolean).join(" ");
  }
  if (chosen.sampler?.startsWith("published-")) {
    return SAMPLERS[chosen.sampler];
  }
  if (chosen.decoding) {
    return chosen.decoding === "left-to-right" ? IN_READING_ORDER : LOOKS;
  }
  return [SAMPLERS[chosen.sampler], PREDICTORS[chosen.predictor], ahead].filter(Boolean).join(" ");
}

/** The settings in a few words, for a pane's head. */
export function inWords(model, chosen) {
  const has = applicable(model, chosen);
  const parts = [model.kind === "left-to-right" ? "left to right" : has.has("sampler") ? chosen.sampler : chosen.decoding];
  if (has.has("steps") && chosen.steps) {
    parts.push(`N = ${chosen.steps.toLocaleString("en")}`);
  }
  if (has.has("predictor") && chosen.predictor !== DEFAULTS.predictor) {
    parts.push(chosen.predictor);
  }
  if (has.has("ahead") && chosen.ahead) {
    parts.push(`ahead ${chosen.ahead}`);
  }
  if (!has.has("draw")) {
    parts.push("float32");
  } else if (chosen.draw !== DEFAULTS.draw) {
    parts.push(chosen.draw);
  }
  if (has.has("temperature") && chosen.temperature !== 1) {
    parts.push(`temperature ${chosen.temperature}`);
  }
  for (const name of ["top_p", "top_k"]) {
    if (has.has(name) && chosen[name]) {
      parts.push(`${name.replace("_", " ")} ${chosen[name]}`);
    }
  }
  return parts.join(", ");
}

/** Why a run has no plan, where it has none. */
export function unplanned(model, chosen) {
  if (chosen.ahead && applicable(model, chosen).has("ahead")) {
    return "Looking ahead: several positions of the plan are filled per call, and the marks show what came when";
  }
  if (model.kind === "left-to-right") {
    return "From left to right, one position per call: τ is the part that is still to come";
  }
  return chosen.sampler?.startsWith("published-")
    ? "No plan: token and time are drawn together, and the marks show what came when"
    : "No plan: the network decides as it goes, and the marks show what came when";
}

/** What the model is, in one line. */
export function aboutModel(model) {
  const data = model.card?.data?.replace(/^[\w-]+: /, "").replace(/;.*$/s, "");
  const kind = model.kind[0].toUpperCase() + model.kind.slice(1);
  const parts = [
    model.length ? `${model.length} tokens` : null, `vocabulary of ${model.vocab_size.toLocaleString("en")}`,
    typeof model.card?.bound === "number"
      ? `${model.card.bound.toFixed(2)} ${model.card.bound_unit ?? "bits per token"}` : null,
  ];
  return `${kind} model${data ? ` of ${data}` : ""}. ${parts.filter(Boolean).join(", ")}.`;
}

/** A form's worth of settings in a container made from the template; the model may stand in another, the head. */
export class Settings {
  constructor(root, models, changed, head = root) {
    this.models = models;
    root.replaceChildren(document.getElementById("settings").content.cloneNode(true));
    if (head !== root) {
      head.replaceChildren(root.querySelector(".model"));
    }
    this.parts = [...new Set([root, head])];
    this.#options("model", models.map((model) => model.id));
    const listen = (event) => {
      const { name } = event.target.dataset;
      if (name === "model") {
        this.#offer();
        this.#takeUsual();
      }
      this.#adjust(name);
      changed();
    };
    for (const part of this.parts) {
      part.addEventListener("input", listen);
      part.addEventListener("change", listen); // some browsers tell of a choice by this alone
    }
    this.value = { model: models[0].id };
  }

  get model() {
    return this.models.find((model) => model.id === this.field("model").value);
  }

  get value() {
    const entries = NAMES.map((name) => {
      const text = this.field(name).value;
      return [name, NUMBERS.has(name) ? (text === "" ? null : Number(text)) : text];
    });
    return Object.fromEntries(entries);
  }

  set value(chosen) {
    if (this.models.some((model) => model.id === chosen.model)) {
      this.field("model").value = chosen.model;
    }
    this.#offer();
    this.usual = this.model.decoding ?? "";
    // A sampler that is named stands for itself; without one the model's own order is the default.
    const defaults = { ...DEFAULTS, decoding: chosen.sampler ? "" : this.model.decoding ?? "" };
    for (const name of NAMES.slice(1)) {
      const value = chosen[name] ?? defaults[name] ?? "";
      const field = this.field(name);
      if (!(field instanceof HTMLSelectElement) || [...field.options].some((option) => option.value === String(value))) {
        field.value = value;
      }
    }
    this.#adjust();
  }

  /** A decoding order that was the default becomes that of the new model; one that was chosen stays. */
  #takeUsual() {
    const before = this.usual;
    this.usual = this.model.decoding ?? "";
    if (this.field("decoding").value === before) {
      this.field("decoding").value = this.usual;
    }
  }

  /** What is sent to the server: the settings that apply, without those that are at their defaults anyway. */
  get request() {
    const chosen = this.value;
    const sent = {};
    for (const name of applicable(this.model, chosen)) {
      if (chosen[name] !== null && chosen[name] !== "") {
        sent[name] = name === "ahead" && chosen.ahead !== "auto" ? Number(chosen.ahead) : chosen[name];
      }
    }
    return sent;
  }

  /** The control of a setting, or null if it has none here. */
  field(name) {
    return this.#find(`[data-name="${CSS.escape(name)}"]`);
  }

  #find(selector) {
    return this.parts.map((part) => part.querySelector(selector)).find(Boolean) ?? null;
  }

  /** group(value), where given, is the heading that a value stands under. */
  #options(name, values, group = () => "") {
    const field = this.field(name);
    const before = field.value;
    const groups = new Map();
    for (const value of values) {
      const heading = group(value);
      groups.set(heading, [...(groups.get(heading) ?? []), new Option(CALLED[value] ?? value, value)]);
    }
    field.replaceChildren(...[...groups].flatMap(([label, options]) => {
      const element = Object.assign(document.createElement("optgroup"), { label });
      element.append(...options);
      return label ? [element] : options;
    }));
    if (values.includes(before)) {
      field.value = before;
    }
  }

  #offer() {
    const { samplers, predictors, decodings, draws } = this.model;
    this.#options("sampler", samplers ?? [],
      (name) => (name.startsWith("published-") ? "as published, with the float32 fault" : "exact"));
    this.#options("predictor", predictors ?? []);
    this.#options("decoding", ["", ...(decodings ?? [])],
      (name) => (["", "left-to-right"].includes(name) ? "planned" : "looks at the network"));
    this.#options("draw", draws ?? []);
    this.#find("[data-about]").textContent = aboutModel(this.model);
  }

  /** Offer what applies; by: the setting that has just changed. */
  #adjust(by = "") {
    const chosen = this.value;
    const names = applicable(this.model, chosen);
    for (const name of NAMES) {
      const field = this.field(name);
      field.disabled = !names.has(name);
      field.closest(".field").classList.toggle("off", field.disabled);
    }
    const steps = this.field("steps");
    if (by !== "steps" && names.has("steps") && names.has("sampler") && steps.value === "") {
      steps.value = this.model.kind === "block" ? this.model.length : 16; // these samplers cannot do without
    }
    this.#find("[data-explains]").textContent = explanation(this.model, chosen);
  }
}
