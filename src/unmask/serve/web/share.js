// A run to give away: as a file, or as the fragment of an address, which the browser keeps to itself, so that a text in
// it never reaches a server's log.

import { CHOICES, NAMES, WINDOWS } from "./settings.js";

const NUMBERS = new Set(["steps", "temperature", "top_p", "top_k", "length", "seed", "number"]);
const COMMON = ["text", "prompt", "length", "seed", "number"];

/** state: {text | prompt | length | canvas, seed, number, a: settings, b: settings or null}, as a fragment. */
export function toFragment(state) {
  const written = new URLSearchParams(pairs(state.a, NAMES));
  for (const [name, value] of pairs(state, COMMON)) {
    written.append(name, value);
  }
  if (state.canvas) {
    written.append("canvas", state.canvas.map((id) => id ?? "").join(","));
  }
  if (state.b) {
    written.append("compare", new URLSearchParams(pairs(state.b, NAMES)).toString());
  }
  return `#${written}`;
}

/** What a fragment says, or null if it says nothing. */
export function fromFragment(fragment) {
  const read = new URLSearchParams(fragment.replace(/^#/, ""));
  if (!read.has("model") && !read.has("seed")) {
    return null;
  }
  const state = { ...values(read, COMMON), a: settings(read), b: null };
  if (read.has("canvas")) {
    state.canvas = read.get("canvas").split(",").map((id) => (id === "" ? null : Number(id)));
  }
  if (read.has("compare")) {
    state.b = settings(new URLSearchParams(read.get("compare")));
  }
  return state;
}

/** Sentences on whatever a fragment says that cannot be: nothing of a link is guessed. */
export function problems(fragment, models) {
  const read = new URLSearchParams(fragment.replace(/^#/, ""));
  const compared = new URLSearchParams(read.get("compare") ?? "");
  const own = [...read].filter(([name]) => name !== "compare");
  return [...faults(own, [...NAMES, ...COMMON, "canvas", "order"], models, read.get("model")),
    ...faults([...compared], [...NAMES, "order"], models, compared.get("model"))];
}

const WHOLE = { steps: 1, top_k: 1, length: 1, number: 1, seed: 0 }; // whole numbers, of at least this

function faults(pairs, known, models, name) {
  const model = models.find((one) => one.id === name);
  if (name && !model) {
    return [`The link asks for the model ${name}, which this server does not have. It has: `
      + `${models.map((one) => one.id).join(", ")}.`];
  }
  const wrong = ([key, value]) => {
    const says = (what) => `The link says ${key}=${value}, ${what}.`;
    if (!known.includes(key)) {
      return says("which this page does not know");
    }
    if (key in WHOLE) {
      return /^\d+$/.test(value) && Number(value) >= WHOLE[key] ? "" : says(`which must be a whole number of at least ${WHOLE[key]}`);
    }
    if (key === "temperature" || key === "top_p") {
      const fits = value.trim() !== "" && (key === "top_p" ? value > 0 && value <= 1 : Number(value) >= 0);
      return fits ? "" : says(key === "top_p" ? "which must be above 0 and at most 1" : "which must be at least 0");
    }
    if (key === "ahead") {
      return WINDOWS.includes(value) ? "" : says(`which must be one of ${WINDOWS.join(", ")}`);
    }
    if (key === "canvas") {
      const fits = (id) => id === "" || (/^\d+$/.test(id) && (!model || Number(id) < model.vocab_size));
      return value.split(",").every(fits) ? "" : `The link's canvas has an id that ${name ?? "the model"} does not know.`;
    }
    const allowed = model && CHOICES[key] ? model[CHOICES[key]] ?? [] : null;
    return !allowed || allowed.includes(value) || !allowed.length ? "" : says(`which must be one of ${allowed.join(", ")}`);
  };
  return pairs.map(wrong).filter(Boolean);
}

/** Hand a file to the browser to save. */
export function download(name, content, type = "application/x-ndjson") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Put a link on the clipboard and say so on the button; where that is not allowed, a field to copy it from. */
export async function copied(link, button) {
  try {
    await navigator.clipboard.writeText(link);
  } catch {
    // Without https the clipboard may be closed to a page: then a person copies by hand.
    const field = Object.assign(document.createElement("input"), { value: link, readOnly: true, className: "link" });
    field.setAttribute("aria-label", "Link to this run");
    return field;
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
  return null;
}

function pairs(source, names) {
  return names.filter((name) => source[name] !== undefined && source[name] !== null && source[name] !== "")
    .map((name) => [name, String(source[name])]);
}

function values(read, names) {
  const found = names.filter((name) => read.has(name));
  return Object.fromEntries(found.map((name) => [name, NUMBERS.has(name) ? Number(read.get(name)) : read.get(name)]));
}

/** The settings of a pane; older links have one "order" in the place of predictor and decoding. */
function settings(read) {
  const order = read.get("order");
  const isPredictor = ["1", "extrapolate", "correct", "auto"].includes(order);
  const moved = isPredictor ? { predictor: order === "1" ? "first-order" : order } : order ? { decoding: order } : {};
  return { ...moved, ...values(read, NAMES) };
}
