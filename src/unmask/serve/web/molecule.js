// A molecule as chemists draw it. SmilesDrawer reads the SMILES and lays it out; the drawing is our own, in the page's
// colours and without inline styles. Each atom is coloured as its token is.

import SmilesDrawer from "./smiles-drawer.min.mjs";
import { cellsOf, View } from "./views.js";
import { write } from "./cells.js";

const SVG = "http://www.w3.org/2000/svg";
const VALENCE = { B: 3, C: 4, N: 3, O: 2, P: 3, S: 2, F: 1, Cl: 1, Br: 1, I: 1 };
const ORDER = { "=": 2, "#": 3, $: 4, ".": 0 };
const MARGIN = 22;
const ROOM = { width: 260, height: 170 }; // a small molecule is not blown up to fill the frame
const laid = new Map(); // layouts by SMILES: playing back and forth asks for the same ones
const MOST_LAID = 2000;

/** {atoms: [{x, y, label}], bonds: [{a, b, order, aromatic}]} of a SMILES, or null where it cannot be read. */
export function layout(smiles) {
  if (!laid.has(smiles)) {
    if (laid.size >= MOST_LAID) {
      laid.clear();
    }
    laid.set(smiles, computed(smiles));
  }
  return laid.get(smiles);
}

function computed(smiles) {
  if (!smiles) {
    return { atoms: [], bonds: [] };
  }
  try {
    const { preprocessor } = new SmilesDrawer.SvgDrawer({ compactDrawing: false });
    preprocessor.initDraw(SmilesDrawer.Parser.parse(smiles), "light", false, []);
    preprocessor.processGraph();
    const { vertices, edges } = preprocessor.graph;
    const bonds = edges.map((edge) => ({
      a: edge.sourceId, b: edge.targetId, order: ORDER[edge.bondType] ?? 1, aromatic: Boolean(edge.isPartOfAromaticRing),
    }));
    const atoms = vertices.map((vertex) => ({
      x: vertex.position.x, y: vertex.position.y, label: label(vertex, bonds.filter(({ a, b }) => a === vertex.id || b === vertex.id)),
    }));
    return { atoms, bonds };
  } catch {
    return null; // not yet a molecule
  }
}

/** The element with its hydrogens and its charge; a carbon in a chain has none. */
function label({ value }, bonds) {
  const element = value.element.length > 1 ? value.element : value.element.toUpperCase();
  const used = bonds.reduce((sum, bond) => sum + (bond.aromatic ? 1.5 : bond.order), 0);
  const hydrogens = value.bracket ? value.bracket.hcount ?? 0 : Math.max(0, Math.floor((VALENCE[element] ?? 0) - used));
  const charge = value.bracket?.charge ?? 0;
  if (element === "C" && bonds.length && !charge) {
    return "";
  }
  const few = "₀₁₂₃₄₅₆₇₈₉";
  const sign = charge ? `${Math.abs(charge) > 1 ? Math.abs(charge) : ""}${charge > 0 ? "⁺" : "⁻"}` : "";
  return `${element}${hydrogens ? `H${hydrogens > 1 ? few[hydrogens] : ""}` : ""}${sign}`;
}

function make(name, attributes, text = null) {
  const element = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  if (text !== null) {
    element.textContent = text;
  }
  return element;
}

/** The lines of a bond: as many as its order; in an aromatic ring the second one is dashed. */
function lines({ order, aromatic }, from, to, centre) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const size = Math.hypot(dx, dy) || 1;
  let [nx, ny] = [-dy / size, dx / size];
  if ((centre.x - from.x) * nx + (centre.y - from.y) * ny < 0) {
    [nx, ny] = [-nx, -ny]; // the second line is inside
  }
  const line = (shift, cut, kind) => make("line", {
    class: kind, x1: from.x + nx * shift + dx * cut, y1: from.y + ny * shift + dy * cut,
    x2: to.x + nx * shift - dx * cut, y2: to.y + ny * shift - dy * cut,
  });
  if (aromatic) {
    return [line(0, 0, "bond"), line(4.5, 0.14, "bond dashed")];
  }
  const shifts = [[], [[0, 0]], [[0, 0], [4.5, 0.12]], [[0, 0], [4, 0.06], [-4, 0.06]], [[-2, 0], [2, 0], [6, 0], [-6, 0]]][order];
  return shifts.map(([shift, cut]) => line(shift, cut, "bond"));
}

export class MoleculeView extends View {
  constructor(model, track, alone) {
    super(model, track, alone);
    this.root.classList.add("molecule");
    this.svg = make("svg", { role: "img", "aria-label": "Molecule" });
    this.smiles = Object.assign(document.createElement("p"), { className: "smiles" });
    this.sets = [cellsOf(track.length, "token heat")];
    this.tokens = Object.assign(document.createElement("div"), { className: "text tokens" });
    this.tokens.append(...this.sets[0]);
    this.verdict = Object.assign(document.createElement("p"), { className: "verdict hint" });
    this.root.append(this.svg, this.smiles, this.verdict, this.tokens);
  }

  show(shown) {
    super.show(shown);
    const { smiles = "", atoms = [] } = this.track.molecule(shown.now);
    const complete = shown.cells.every((cell) => cell.id !== null);
    const invalid = !atoms.length && (complete || smiles !== "");
    const found = (invalid ? null : layout(smiles) ?? this.last) ?? { atoms: [], bonds: [] };
    this.last = found;
    this.smiles.textContent = smiles || (complete ? "an empty text" : "no atom yet");
    const label = invalid ? `${smiles}, not a molecule` : smiles ? `Molecule ${smiles}` : "Molecule, still empty";
    this.svg.setAttribute("aria-label", label);
    this.root.classList.toggle("invalid", invalid);
    this.verdict.textContent = !complete || !this.track.done ? "" : this.track.done.verdict;
    this.#draw(found, atoms, shown);
  }

  fill(element, cell, ghost) {
    // An end of the row has no sign of its own.
    write(element, cell.piece ?? ghost?.piece ?? "_");
  }

  #draw({ atoms, bonds }, positions, { cells, now, heat }) {
    const xs = atoms.map((atom) => atom.x);
    const ys = atoms.map((atom) => atom.y);
    const [left, top] = [Math.min(...xs, Infinity), Math.min(...ys, Infinity)];
    const [width, height] = [Math.max(...xs, -Infinity) - left, Math.max(...ys, -Infinity) - top];
    const frame = atoms.length ? [Math.max(width, ROOM.width - 2 * MARGIN), Math.max(height, ROOM.height - 2 * MARGIN)] : [216, 126];
    const origin = atoms.length ? [left - (frame[0] - width) / 2, top - (frame[1] - height) / 2] : [0, 0];
    const box = [origin[0] - MARGIN, origin[1] - MARGIN, frame[0] + 2 * MARGIN, frame[1] + 2 * MARGIN];
    this.svg.setAttribute("viewBox", box.map((value) => value.toFixed(1)).join(" "));
    const centre = { x: left + width / 2, y: top + height / 2 };
    const discs = atoms.map(({ x, y }, i) => {
      const cell = cells[positions[i]];
      const disc = make("circle", { class: "atom heat", r: 9, cx: x, cy: y, "data-position": positions[i] ?? -1 });
      disc.dataset.state = cell?.call ? (cell.call === now ? "new" : "filled") : "given";
      disc.style.setProperty("--at", cell?.call ? heat(cell).toFixed(3) : 0);
      return disc;
    });
    const strokes = bonds.flatMap((bond) => lines(bond, atoms[bond.a], atoms[bond.b], centre));
    const plates = atoms.flatMap((atom, i) => (atom.label
      ? [make("text", { class: "element", x: atom.x, y: atom.y + 4.5, "data-position": positions[i] ?? -1 }, atom.label)] : []));
    // A labelled atom lies over its bonds, an unlabelled one under them.
    const under = discs.filter((_, i) => !atoms[i].label);
    this.svg.replaceChildren(...under, ...strokes, ...discs.filter((_, i) => atoms[i].label), ...plates);
  }

  get what() {
    return "molecule";
  }
}
