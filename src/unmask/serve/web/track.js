// One sequence as it is filled: its plan, the steps that have arrived, and the canvas after any number of them.

const MOST_BITS = 64; // what float32 rounds to probability 0 is not infinitely surprising

/** -log2 of a probability. */
export function surprise(probability) {
  return Math.abs(Math.min(-Math.log2(probability), MOST_BITS));
}

/** A cell is {id, piece, call, tau, probability, corrected}: id is null in a hole, call is 0 where the token was given. */
export class Track {
  constructor(plan) {
    this.plan = plan;
    this.steps = [];
    this.done = null;
    this.#clear();
  }

  get length() {
    return this.plan.canvas.length;
  }

  /** Network calls of the whole run: known before the first with a plan, and a bound that comes closer without. */
  get calls() {
    const made = this.steps.length;
    if (this.done) {
      return made;
    }
    const bound = Math.max(this.plan.calls ?? 0, made);
    // Without a plan there is a bound alone. As a rule each call fills something, and the next as many as those before.
    const left = this.holes - this.#filled;
    const guess = this.#filled > 0 ? Math.ceil((made * this.holes) / this.#filled) : this.holes;
    return this.plan.order || this.#idle ? bound : Math.min(bound, made + left, Math.max(guess, made + (left > 0)));
  }

  get holes() {
    return this.plan.canvas.filter((id) => id === null).length;
  }

  add(step) {
    this.steps.push(step);
    this.#filled += step.positions.length - (step.hidden?.length ?? 0);
    this.#idle ||= !step.positions.length;
  }

  /** The cells after so many calls. The array is the track's own and changes with the next question. */
  at(calls) {
    if (calls < this.#applied) {
      this.#clear();
    }
    while (this.#applied < calls) {
      this.#apply(this.steps[this.#applied]);
    }
    return this.#cells;
  }

  /** What a run that looks ahead has guessed by a call, by position: {id, piece, changed}. */
  guesses(calls) {
    const before = this.#guessed(calls - 1);
    return new Map([...this.#guessed(calls)].map(([position, guess]) =>
      [position, { ...guess, changed: before.has(position) && before.get(position).id !== guess.id }]));
  }

  /** Whether it looks ahead. */
  get ahead() {
    return this.steps.some((step) => step.guessed);
  }

  /** The molecule that is there after so many calls: {smiles, atoms}. */
  molecule(calls) {
    return (calls ? this.steps[calls - 1].molecule : null) ?? {};
  }

  /** What was measured up to a call, the mean surprise of the tokens then visible and drawn included. */
  numbers(calls) {
    const step = calls ? this.steps[calls - 1] : null;
    const drawn = this.at(calls).filter((cell) => cell.id !== null && cell.call > 0);
    const bits = drawn.reduce((sum, cell) => sum + surprise(cell.probability), 0) / drawn.length;
    const last = this.done && calls === this.steps.length ? this.done : step;
    return { seconds: last?.seconds ?? null, entropy: last?.entropy ?? null, bits: drawn.length ? bits : null };
  }

  /** The surprises, in bits, of all tokens that were drawn, in the order of the calls. */
  surprises(calls = this.steps.length) {
    return this.steps.slice(0, calls).flatMap((step) => step.probabilities.map(surprise));
  }

  /** [tokens filled, entropy] and [tokens filled, mean surprise] after each call, up to one. */
  curves(calls) {
    const [entropy, bits] = [[], []];
    let [filled, drawn, sum] = [0, 0, 0];
    for (const step of this.steps.slice(0, calls)) {
      filled += step.positions.length - (step.hidden?.length ?? 0);
      drawn += step.positions.length;
      sum = step.probabilities.reduce((total, probability) => total + surprise(probability), sum);
      if (step.entropy !== null && step.entropy !== undefined) {
        entropy.push([filled, step.entropy]);
      }
      if (drawn) {
        bits.push([filled, sum / drawn]);
      }
    }
    return { entropy, bits };
  }

  /** The line that `unmask sample --json` would have written, so that `unmask sample --watch` can show it. */
  record(how) {
    const trace = this.steps.map((step) => ({
      call: step.call, positions: step.positions, tokens: step.tokens, probabilities: step.probabilities,
      tau: step.tau, ...(step.hidden?.length ? { hidden: step.hidden } : {}),
    }));
    const { text, nfe, ncs, tokens, entropy, index } = this.done;
    return { text, index: index ?? 0, nfe, ncs, entropy, ...how, tokens, trace };
  }

  #filled = 0; // positions, by all that has arrived
  #idle = false; // whether some call filled nothing
  #applied = 0; // calls, in the cells
  #cells = [];

  #clear() {
    this.#applied = 0;
    this.#cells = this.plan.canvas.map((id, i) =>
      ({ id, piece: id === null ? null : this.plan.pieces[i] ?? "", call: 0, tau: null, probability: null }));
  }

  #guessed(calls) {
    const guessed = calls > 0 ? this.steps[calls - 1].guessed ?? [] : [];
    return new Map(guessed.map(([position, id, piece]) => [position, { id, piece }]));
  }

  #apply(step) {
    this.#applied += 1;
    const before = this.#guessed(this.#applied - 1);
    for (const position of step.hidden ?? []) {
      Object.assign(this.#cells[position], { id: null, piece: null });
    }
    step.positions.forEach((position, i) => {
      this.#cells[position] = {
        id: step.tokens[i], piece: step.pieces[i] ?? "", call: this.#applied, tau: step.tau?.[i] ?? null,
        probability: step.probabilities[i],
        corrected: before.has(position) && before.get(position).id !== step.tokens[i],
      };
    });
    // A character of several tokens appears where its last token is, once the others are there too.
    for (const [position, piece] of step.revised ?? []) {
      const cell = this.#cells[position];
      this.#cells[position] = { ...cell, piece: cell.id === null ? null : piece ?? "" };
    }
  }
}
