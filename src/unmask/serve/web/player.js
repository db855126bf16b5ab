// The playhead: a number of network calls, moved by a clock, by a hand, or by what arrives. All panes follow it.

const WATCHABLE = { rate: 20, least: 4, most: 8 }; // calls a second, such that the whole takes from 4 to 8 seconds
const SLOW = 3;

/** Calls a second at which so many can be followed. */
export function watchable(calls) {
  const seconds = Math.min(Math.max(calls / WATCHABLE.rate, WATCHABLE.least), WATCHABLE.most);
  return calls / seconds;
}

export class Player {
  /** show(calls) draws everything at a whole number of calls. */
  constructor(show) {
    this.show = show;
    this.at = 0;
    this.playing = false;
    this.arrived = 0;
    this.planned = 0;
    this.running = false;
    this.pace = "watchable";
  }

  /** Start again from an empty canvas and follow what arrives. */
  restart() {
    Object.assign(this, { at: 0, arrived: 0, planned: 0, running: true });
    this.play();
  }

  /** So many calls are there of so many; running says whether more are to come. */
  reached(arrived, planned, running) {
    Object.assign(this, { arrived, planned, running });
    if (!this.playing) {
      this.#draw();
    }
  }

  play() {
    if (!this.running && this.at >= this.arrived) {
      this.at = 0;
    }
    if (!this.playing) {
      this.playing = true;
      this.#then = performance.now();
      requestAnimationFrame((now) => this.#tick(now));
    }
    this.#draw();
  }

  pause() {
    this.playing = false;
    this.#draw();
  }

  toggle() {
    this.playing ? this.pause() : this.play();
  }

  /** To a number of calls, as far as they are there; a hand on the playhead stops the clock. */
  go(calls) {
    this.playing = false;
    this.at = Math.min(Math.max(calls, 0), this.arrived);
    this.#draw();
  }

  move(calls) {
    this.go(Math.floor(this.at) + calls);
  }

  #then = 0;

  get #rate() {
    if (this.pace === "live") {
      return Infinity;
    }
    return this.pace === "slow" ? SLOW : watchable(this.planned);
  }

  #tick(now) {
    if (!this.playing) {
      return;
    }
    // A tab in the background gets no frames: the clock must not jump when it comes back.
    const passed = Math.min((now - this.#then) / 1000, 0.25);
    this.#then = now;
    this.at = Math.min(this.at + (passed > 0 ? this.#rate * passed : 0), this.arrived);
    if (!this.running && this.at >= this.arrived) {
      this.playing = false;
    }
    this.#draw();
    requestAnimationFrame((next) => this.#tick(next));
  }

  #draw() {
    this.show(Math.floor(this.at));
  }
}
