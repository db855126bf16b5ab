// Animated GIFs, as GIF89a defines them: one palette for all frames, and of each frame only the part that has changed.

const BINS = 32; // of a colour's channel, when colours are counted
const MOST_COLOURS = 256;

/** The palette of some frames (RGBA bytes): the colours that are most often there, and a function from pixel to index. */
export function palette(frames) {
  const counts = new Uint32Array(BINS ** 3);
  const sums = new Float64Array(3 * BINS ** 3);
  for (const pixels of frames) {
    for (let i = 0; i < pixels.length; i += 4) {
      const bin = binOf(pixels, i);
      counts[bin] += 1;
      for (let c = 0; c < 3; c++) {
        sums[3 * bin + c] += pixels[i + c];
      }
    }
  }
  const used = [...counts.keys()].filter((bin) => counts[bin]).sort((a, b) => counts[b] - counts[a]);
  const colours = used.slice(0, MOST_COLOURS).map((bin) => [0, 1, 2].map((c) => Math.round(sums[3 * bin + c] / counts[bin])));
  const nearest = new Int16Array(BINS ** 3).fill(-1);
  const index = (pixels, i) => {
    const bin = binOf(pixels, i);
    if (nearest[bin] < 0) {
      const distance = (colour) => colour.reduce((sum, value, c) => sum + (value - pixels[i + c]) ** 2, 0);
      nearest[bin] = colours.reduce((best, colour, k) => (distance(colour) < distance(colours[best]) ? k : best), 0);
    }
    return nearest[bin];
  };
  return { colours, index };
}

function binOf(pixels, i) {
  return ((pixels[i] >> 3) * BINS + (pixels[i + 1] >> 3)) * BINS + (pixels[i + 2] >> 3);
}

export class Gif {
  constructor(width, height, { colours, index }) {
    Object.assign(this, { width, height, index, before: null, parts: [] });
    const table = new Uint8Array(3 * MOST_COLOURS);
    colours.forEach((colour, i) => table.set(colour, 3 * i));
    this.#put([...new TextEncoder().encode("GIF89a"), ...short(width), ...short(height), 0xf7, 0, 0]);
    this.#put(table);
    // NETSCAPE2.0: play it for ever.
    this.#put([0x21, 0xff, 11, ...new TextEncoder().encode("NETSCAPE2.0"), 3, 1, 0, 0, 0]);
  }

  /** Add a frame (RGBA bytes) that is shown for so many seconds. */
  add(pixels, seconds) {
    const now = new Uint8Array(this.width * this.height);
    for (let i = 0; i < now.length; i++) {
      now[i] = this.index(pixels, 4 * i);
    }
    const { left, top, width, height } = this.#changed(now);
    const part = new Uint8Array(width * height);
    for (let y = 0; y < height; y++) {
      part.set(now.subarray((top + y) * this.width + left, (top + y) * this.width + left + width), y * width);
    }
    this.#put([0x21, 0xf9, 4, 4, ...short(Math.max(2, Math.round(100 * seconds))), 0, 0]);
    this.#put([0x2c, ...short(left), ...short(top), ...short(width), ...short(height), 0, 8]);
    const data = compressed(part);
    for (let i = 0; i < data.length; i += 255) {
      const block = data.subarray(i, i + 255);
      this.#put([block.length]);
      this.#put(block);
    }
    this.#put([0]);
    this.before = now;
  }

  get blob() {
    return new Blob([...this.parts, new Uint8Array([0x3b])], { type: "image/gif" });
  }

  #put(bytes) {
    this.parts.push(Uint8Array.from(bytes));
  }

  /** The smallest part of the frame that has every change; one pixel where there is none. */
  #changed(now) {
    if (!this.before) {
      return { left: 0, top: 0, width: this.width, height: this.height };
    }
    let [left, top, right, bottom] = [this.width, this.height, -1, -1];
    for (let i = 0; i < now.length; i++) {
      if (now[i] !== this.before[i]) {
        const [x, y] = [i % this.width, Math.floor(i / this.width)];
        [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
      }
    }
    return right < 0 ? { left: 0, top: 0, width: 1, height: 1 }
      : { left, top, width: right - left + 1, height: bottom - top + 1 };
  }
}

function short(value) {
  return [value & 255, value >> 8];
}

/** LZW with 8-bit symbols: codes grow from 9 to 12 bits, lowest bit first, and then the table begins anew. */
export function compressed(symbols) {
  const [clear, end] = [256, 257];
  const out = [];
  const table = new Int16Array(4096 * 256);
  let [buffer, held, width, next] = [0, 0, 9, 258];
  const put = (code) => {
    buffer |= code << held;
    held += width;
    while (held >= 8) {
      out.push(buffer & 255);
      buffer >>>= 8;
      held -= 8;
    }
  };
  put(clear);
  let prefix = symbols[0];
  for (let i = 1; i < symbols.length; i++) {
    const key = prefix * 256 + symbols[i];
    if (table[key]) {
      prefix = table[key];
      continue;
    }
    put(prefix);
    if (next < 4096) {
      if (next === 1 << width) {
        width += 1;
      }
      table[key] = next++;
    } else {
      put(clear);
      table.fill(0);
      [width, next] = [9, 258];
    }
    prefix = symbols[i];
  }
  put(prefix);
  if (next === 1 << width && width < 12) {
    width += 1; // the reader has added an entry by now
  }
  put(end);
  if (held) {
    out.push(buffer & 255);
  }
  return Uint8Array.from(out);
}
