// Comparisons worth watching. Each is a pair of settings on one seed, and a sentence on what to look for.

import { fillsBlanks } from "./settings.js";

const LAW = "published-law";
const MANY_STEPS = 100000; // the most that a server takes unless told otherwise

/** The presets by name: possible(models) says whether, pair(model, models) gives {a, b, source, number, length}. */
export const PRESETS = {
  float32: {
    about: `Same model, same seed, N = ${MANY_STEPS.toLocaleString("en")} steps. A draws exactly. B draws token and mask `
      + "together in float32, as published code does, so that rare tokens lose to the mask. Watch B's surprise and "
      + "entropy stay below A's. (B goes by the law of those draws: making them all would take an hour.)",
    possible: (models) => models.some((model) => has(model, LAW)),
    pair(model, models) {
      // The larger the vocabulary, the rarer its tokens: that is where the fault is.
      const largest = models.filter((other) => has(other, LAW)).reduce((a, b) => (b.vocab_size > a.vocab_size ? b : a));
      const one = { model: largest.id, steps: MANY_STEPS };
      return {
        a: { ...one, sampler: "ancestral" }, b: { ...one, sampler: LAW }, number: 8, source: "empty",
        length: Math.min(largest.length ?? 64, 64),
      };
    },
  },
  "left-to-right": {
    about: "Both draw one token per call and never change their minds: A anywhere, in the order of its plan, B from "
      + "left to right. A can fill a hole in the middle; B's calls are cheaper, because it keeps what it has computed.",
    possible: (models) => models.some(fillsBlanks) && models.some(inReadingOrder),
    pair(model, models) {
      const pairs = models.filter(fillsBlanks).flatMap((a) => models.filter(inReadingOrder).map((b) => [a, b]));
      // Twins are trained on the same data: they write in the same tokens, and one's name begins with the other's.
      const fit = ([a, b]) => 4 * (a.tokenizer === b.tokenizer && a.vocab_size === b.vocab_size)
        + 2 * (a === model || b === model) + (a.id.startsWith(b.id) || b.id.startsWith(a.id));
      const [a, b] = pairs.reduce((best, pair) => (fit(pair) > fit(best) ? pair : best));
      return { a: { model: a.id, sampler: "first-hitting" }, b: { model: b.id }, source: "prompt" };
    },
  },
  calls: {
    about: "A asks the network once per token. B takes eight calls for everything: tokens of one call do not see each "
      + "other. Look for neighbours in B that came together and do not fit.",
    possible: (models) => models.some(fillsBlanks),
    pair(model, models) {
      const one = fillsBlanks(model) ? model : models.find(fillsBlanks);
      return { a: { model: one.id, sampler: "first-hitting" }, b: { model: one.id, sampler: "parallel", steps: 8 } };
    },
  },
  own: {
    about: "Two settings, one start, one seed.",
    possible: () => true,
    pair: (model, models, chosen) => ({ a: chosen, b: chosen }),
  },
};

function inReadingOrder(model) {
  return model.kind === "left-to-right";
}

function has(model, sampler) {
  return model.samplers?.includes(sampler);
}

/** What came of a comparison: {numbers: [{name, a, b}], sentence}; tracks are [of A, of B], all done, of one model or two. */
export function verdict(tracks, oneModel) {
  const entropies = tracks.map((own) => summary(own.map((track) => track.done.entropy)));
  const bits = tracks.map((own) => summary(own.flatMap((track) => track.surprises())));
  const calls = tracks.map((own) => Math.max(...own.map((track) => track.steps.length)));
  const row = (name, [a, b], digits) => ({ name, a: a.toFixed(digits), b: b.toFixed(digits) });
  const means = (both) => both.map((one) => one.mean);
  return {
    numbers: [
      row("surprise, bits/token", means(bits), 2), row("entropy, nats", means(entropies), 2), row("network calls", calls, 0),
    ],
    sentence: sentence(bits, entropies, tracks[0].length, oneModel),
  };
}

function sentence(bits, entropies, count, oneModel) {
  const [surprise, variety] = [bits, entropies].map(gap);
  const over = count > 1 ? `, over ${count} sequences each` : "";
  if (!surprise.sure && !variety.sure) {
    return `A and B differ by ${surprise.size} bits a token${over}: no more than chance would make them.`;
  }
  const likelier = `B's tokens are ${surprise.less ? "likelier" : "less likely"}, by ${surprise.size} bits a token`;
  const varied = count > 1 ? `, and ${variety.less ? "less" : "more"} varied, by ${variety.size} nats` : "";
  const colder = oneModel && count > 1 && surprise.less && variety.less ? ": as if somebody had turned the temperature down" : "";
  return `${likelier}${varied}${over}${colder}.`;
}

/** How much lower or higher B is than A, and whether that is more than chance: three standard errors. */
function gap([a, b]) {
  const [difference, error] = [b.mean - a.mean, Math.hypot(a.error, b.error)];
  const size = `${Math.abs(difference).toFixed(2)} ± ${error.toFixed(2)}`;
  return { less: difference < 0, sure: error > 0 && Math.abs(difference) > 3 * error, size };
}

function summary(values) {
  const count = Math.max(values.length, 1);
  const mean = values.reduce((sum, value) => sum + value, 0) / count;
  const spread = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, error: count > 1 ? Math.sqrt(spread / (count - 1) / count) : 0 };
}

/** Which preset a pair of settings, as a link has it, comes from. */
export function presetOf({ a, b }, models) {
  const same = (one, other) => ["model", "sampler"].every((name) => (one[name] ?? null) === (other[name] ?? null));
  const model = models.find((one) => one.id === a.model) ?? models[0];
  const names = Object.keys(PRESETS).filter((name) => name !== "own" && PRESETS[name].possible(models));
  return names.find((name) => {
    const pair = PRESETS[name].pair(model, models);
    return same(pair.a, a) && same(pair.b, b);
  }) ?? "own";
}
