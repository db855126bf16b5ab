// A run to give away: as a file, or as the fragment of an address, which the browser keeps to itself, so that a text in
// it never reaches a server's log.

import { NAMES } from "./settings.js";

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

/** Hand a file to the browser to save. */
export function download(name, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "application/x-ndjson" }));
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
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy link"; }, 1500);
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
