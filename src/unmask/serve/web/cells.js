// What a pane is made of: tokens on a canvas, captions, and the time that is left.

/** The space before a word is not a part of its colour, nor left over at the end of a line. */
export function write(element, text) {
  if (element.textContent === text && element.firstChild) {
    return;
  }
  const ink = document.createElement("span");
  const gap = text.trim() === "" ? "" : text.match(/^ */)[0];
  ink.className = "ink";
  ink.textContent = text.slice(gap.length);
  element.replaceChildren(gap, ink);
}

/** How long it will still take, as far as its calls tell. */
export function remaining({ steps, calls, plan }) {
  const last = steps.at(-1);
  const seconds = last ? (last.seconds / steps.length) * (calls - steps.length) : plan.seconds_left;
  return seconds >= 1 ? `(${Math.round(seconds)} to go)` : "";
}

/** A grid with a line below it. */
export function captioned(grid, text) {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = text;
  figure.append(grid, caption);
  return figure;
}
