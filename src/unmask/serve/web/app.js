// The page: the form on one side, the panes on the other, and a playhead that all panes follow.

import { LineChart } from "./chart.js";
import { Composer } from "./compose.js";
import { listen as listenToKeys, theme } from "./desk.js";
import { examples, offer } from "./examples.js";
import { gif, painted, records, webm } from "./film.js";
import { concluded, explained } from "./message.js";
import { Pane } from "./pane.js";
import { Player, watchable } from "./player.js";
import { presetOf, PRESETS, verdict } from "./presets.js";
import { fillsBlanks, inWords, Settings, unplanned } from "./settings.js";
import { copied, download, fromFragment, problems, toFragment } from "./share.js";
import { keepPicture, models as fetchModels, run as stream } from "./stream.js";

const NARROW = matchMedia("(max-width: 760px)"); // one column, as in the style sheet
const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const PICTURE = { width: 1200, height: 630 }; // what previews of links are made for

const element = (id) => document.getElementById(id);
const say = (text) => { element("status").textContent = text; };

let models = [];
let first = null; // Settings of pane A
let second = null; // Settings of pane B
let panes = [];
let current = null; // the AbortController of the run that is going on
let last = null; // what the run on the screen was asked for

const composer = new Composer();
const player = new Player(draw);
const entropy = new LineChart(element("entropy"), "nats");
const surprise = new LineChart(element("surprise"), "bits per token");

async function boot() {
  element("message").hidden = true;
  try {
    models = await fetchModels();
  } catch (failure) {
    return complain(explained(failure, boot));
  }
  if (!models.length) {
    return complain(["The server has no model. Start it with one: unmask serve MODEL."]);
  }
  first = new Settings(element("settings-a"), models, adapt, element("head-a"));
  second = new Settings(element("settings-b"), models, adapt);
  const [example] = examples(models);
  first.value = { model: example?.start.model ?? (models.find(fillsBlanks) ?? models[0]).id };
  for (const option of element("preset").options) {
    option.disabled = option.value !== "" && !PRESETS[option.value].possible(models);
  }
  adapt();
  element("run").disabled = false;
  offer(element("examples"), models, begin);
  document.body.dataset.ready = "";
  if (location.hash === "" && example) {
    begin(example.start, { scroll: false });
  } else {
    restore();
  }
}

/** Bring the form to an example, and run it. */
function begin({ model, source, preset = "", seed = 0, number, ahead = "", decoding }, how = {}) {
  if (model) {
    first.value = { model, ahead, decoding };
  }
  element("preset").value = preset;
  choosePreset();
  element("seed").value = seed;
  element("number").value = number ?? element("number").value;
  if (source) {
    composer.example(source);
  }
  run(how);
}

/** Bring the form to what the address says, and run it. */
function restore() {
  const shared = fromFragment(location.hash);
  if (!shared) {
    return;
  }
  first.value = shared.a;
  element("seed").value = shared.seed ?? 0;
  element("number").value = shared.number ?? 1;
  element("preset").value = shared.b ? presetOf(shared, models) : "";
  if (shared.b) {
    second.value = shared.b;
  }
  adapt();
  composer.value = shared;
  const wrong = problems(location.hash, models);
  if (wrong.length) {
    return complain([`${wrong.join(" ")} Look at the settings and press Run.`]);
  }
  run();
}

/** The settings decide what can be typed, and whether there is a second pane. */
function adapt() {
  const comparing = element("preset").value !== "";
  element("more-b").hidden = !comparing;
  element("title-a").textContent = comparing ? "Pane A" : "Sampler";
  element("preset-help").hidden = !comparing;
  element("preset-help").textContent = PRESETS[element("preset").value]?.about ?? "";
  const used = comparing ? [first.model, second.model] : [first.model];
  composer.adapt(first.model, used);
}

function choosePreset() {
  const preset = PRESETS[element("preset").value];
  if (preset) {
    const pair = preset.pair(first.model, models, first.value);
    first.value = pair.a;
    second.value = pair.b;
    element("number").value = pair.number ?? 1;
    element("length").value = pair.length ?? "";
    adapt();
    if (pair.source && !document.querySelector(`[name=source][value=${pair.source}]`).disabled) {
      composer.source = pair.source;
    }
  } else {
    element("number").value = 1;
    element("length").value = "";
    adapt();
  }
}

/** Everything that makes a run what it is. */
function asked() {
  const settings = element("preset").value ? [first, second] : [first];
  const [a, b = null] = settings.map((one) => one.request);
  return { ...composer.value, seed: whole("seed") ?? 0, number: whole("number") ?? 1, a, b };
}

function whole(id) {
  return element(id).value === "" ? null : Number(element(id).value);
}

async function run({ scroll = true } = {}) {
  current?.abort();
  const controller = new AbortController();
  current = controller;
  const asking = asked();
  const { a, b, ...common } = asking;
  const coming = prepared(asking);
  let entered = false;
  // What is on the stage stays there until something of the new run has come.
  const enter = () => {
    if (!entered) {
      entered = true;
      stage(coming, asking, scroll);
    }
  };
  element("message").hidden = true;
  for (const field of document.querySelectorAll("#form [aria-invalid]")) {
    field.removeAttribute("aria-invalid");
  }
  element("stop").hidden = false;
  element("panes").setAttribute("aria-busy", "true");
  say("Running.");
  const settings = b ? [a, b] : [a];
  const failures = await Promise.all(settings.map((own, i) => follow(coming[i], { ...common, ...own }, controller, enter)));
  if (current !== controller) {
    return;
  }
  current = null;
  element("stop").hidden = true;
  element("panes").removeAttribute("aria-busy");
  const failure = failures.find(Boolean);
  if (entered) {
    finish();
  } else if (failure && !controller.signal.aborted) {
    const kept = panes.length ? [" The run before is still here."] : [];
    complain([...explained(failure, () => run()), ...kept]);
    say("The run did not begin.");
  }
}

/** Empty panes, as many as there are settings. */
function prepared(asking) {
  const settings = asking.b ? [first, second] : [first];
  return settings.map((one, i) => {
    const pane = new Pane(settings.length > 1 ? "AB"[i] : "", { inspect, erased, picked });
    pane.start(one.model, inWords(one.model, one.value), unplanned(one.model, one.value), asking.number);
    return pane;
  });
}

/** Bring the panes of a run that has begun onto the stage. */
function stage(coming, asking, scroll) {
  [panes, last] = [coming, asking];
  history.replaceState(null, "", `${location.pathname}${toFragment(last)}`);
  element("panes").replaceChildren(...panes.map((pane) => pane.root));
  element("panes").removeAttribute("aria-busy");
  element("panes").classList.toggle("two", panes.length > 1);
  element("verdict").hidden = panes.length < 2;
  element("verdict").replaceChildren(element("preset-help").textContent);
  for (const id of ["export", "erase", "gif", "webm", "preview"]) {
    element(id).disabled = true; // until it is done
  }
  player.restart();
  if (NARROW.matches && scroll) {
    element("panes").scrollIntoView();
  }
}

/** Take one pane's events as they come; enter() is called when the first has. Returns what went wrong, or null. */
async function follow(pane, request, controller, enter) {
  const { number, ...rest } = request;
  const body = number > 1 ? request : rest;
  try {
    for await (const [event, data] of stream(body, controller.signal)) {
      if (controller !== current) {
        return null; // another run has taken its place
      }
      pane.take(event, data);
      enter();
      progress();
    }
    return null;
  } catch (failure) {
    if (controller === current) {
      if (controller.signal.aborted) {
        pane.note([`Stopped after call ${pane.arrived}. What has arrived is kept.`]);
      } else {
        pane.note(explained(failure, () => run()));
        blame(failure.param, pane);
      }
    }
    return failure;
  }
}

function progress() {
  const begun = panes.some((pane) => pane.track);
  element("player").toggleAttribute("inert", !begun);
  element("lines").hidden = !begun || panes.length < 2;
  const arrived = Math.max(...panes.map((pane) => pane.arrived));
  player.reached(arrived, Math.max(arrived, ...panes.map((pane) => pane.calls)), current !== null);
}

function finish() {
  progress();
  const finished = panes.filter((pane) => pane.done);
  for (const id of ["export", "gif", "preview"]) {
    element(id).disabled = !finished.length;
  }
  element("webm").disabled = !finished.length || !records();
  element("erase").disabled = !finished.some((pane) => fillsBlanks(pane.model));
  if (finished.length < panes.length) {
    return say("The run did not finish.");
  }
  const oneModel = new Set(panes.map((pane) => pane.model.id)).size === 1;
  const compared = panes.length > 1 ? verdict(panes.map((pane) => pane.tracks), oneModel) : null;
  if (compared) {
    element("verdict").replaceChildren(...concluded(compared));
  }
  say(panes.map((pane) => {
    const { done } = pane.track;
    const several = pane.number > 1 ? `${pane.number} sequences, the first: ` : "";
    const what = `${several}${["image", "grid"].includes(pane.model.display) ? `a ${pane.model.display}` : done.text}`;
    return `${pane.name} Done after ${pane.track.calls} calls, entropy ${done.entropy?.toFixed(2)} nats: ${what}`;
  }).concat(compared?.sentence ?? []).join(" "));
}

/** Draw everything at a number of calls: the only way in which anything on the stage changes. */
function draw(calls) {
  const colour = document.body.dataset.colour;
  panes.forEach((pane) => pane.show(calls, colour));
  const tracks = panes.map((pane) => pane.track).filter(Boolean);
  if (tracks.length > 1) {
    const curves = tracks.map((track) => track.curves(calls));
    const most = Math.max(...tracks.map((track) => track.holes));
    entropy.show(curves.map((curve) => curve.entropy), most);
    surprise.show(curves.map((curve) => curve.bits), most);
  }
  element("scrub").max = player.planned;
  element("scrub").value = calls;
  element("scrub").setAttribute("aria-valuetext", `call ${calls} of ${player.planned}`);
  element("where").textContent = `${calls} / ${player.planned}`;
  element("play").setAttribute("aria-label", player.playing ? "Pause" : "Play");
}

function inspect(pane, position) {
  element("inspector").textContent = pane.describe(position);
}

function picked() {
  draw(Math.floor(player.at));
}

/** Tokens were erased by hand: the next run fills them. */
function erased(pane) {
  if (pane.model.id !== first.model.id) {
    complain([`This canvas is ${pane.model.id}'s: choose that model again to fill what is erased.`]);
  } else if (pane.done && fillsBlanks(pane.model)) {
    composer.erased(pane.ids);
    say(`${pane.erased.size} tokens erased. Run fills them again.`);
  }
}

function blame(param, pane) {
  const name = param ?? "";
  const own = pane.name === "B" ? second : first;
  const field = own.field(name) ?? document.querySelector(`#form [data-name="${CSS.escape(name)}"]`);
  field?.setAttribute("aria-invalid", "true");
}

function complain(nodes) {
  element("message").replaceChildren(...nodes);
  element("message").hidden = false;
}

function colourBy(name) {
  document.body.dataset.colour = name;
  document.querySelector(`[name=colour][value=${name}]`).checked = true;
  element("low").textContent = name === "when" ? "first call" : "unsure, 1 in 1,000 or less";
  element("high").textContent = name === "when" ? "last call" : "sure";
  draw(Math.floor(player.at));
}

async function share() {
  if (!first) {
    return; // there is nothing to share before the models are known
  }
  await give(toFragment(last ?? asked()), element("share"));
}

/** A link to the clipboard, or into a field to copy it from. */
async function give(tail, button) {
  const field = await copied(new URL(`${location.pathname}${tail}`, location.href).href, button);
  if (field) {
    complain(["Copy this link: ", field]);
    field.select();
  }
}

/** Everything on the stage as it is at some calls, without fading: show is called with each; then as it was. */
async function filmed(button, make) {
  const [before, at] = [button.textContent, player.at];
  player.pause();
  button.textContent = "Saving…";
  button.disabled = true;
  document.body.classList.add("still");
  await new Promise((resolve) => { setTimeout(resolve, 50); }); // so that the button is seen to work
  try {
    return await make();
  } catch (failure) {
    complain(explained(failure, () => button.click()));
    return null;
  } finally {
    document.body.classList.remove("still");
    player.go(at);
    button.textContent = before;
    button.disabled = false;
  }
}

async function saveFilm(kind, make) {
  const seconds = player.arrived / (watchable(player.arrived) || 1);
  const blob = await filmed(element(kind), () => make(panes, draw, player.arrived, seconds));
  blob && download(`${fileName()}.${kind}`, blob, blob.type);
}

/** A link whose preview is a picture of the run as it is shown: the server keeps the picture, and nothing else. */
async function sharePicture() {
  const id = await filmed(element("preview"), async () => {
    const canvas = painted(panes, PICTURE);
    return keepPicture(await new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); }));
  });
  if (id) {
    await give(`?picture=${id}${toFragment(last)}`, element("preview"));
  }
}

function fileName() {
  return `unmask-${last.a.model.split("/").at(-1)}-${last.seed}`;
}

/** One JSON line per sequence, as unmask sample --json writes them. */
function exported() {
  const lines = panes.flatMap((pane, i) => {
    const { seed } = last;
    const { model, ...how } = last.b && i ? last.b : last.a;
    const known = fillsBlanks(pane.model) ? {} : { sampler: pane.model.kind };
    const done = pane.tracks.filter((track) => track?.done);
    return done.map((track) => JSON.stringify(track.record({ seed, model, ...known, ...how })));
  });
  download(`${fileName()}.jsonl`, `${lines.join("\n")}\n`);
}

function bind() {
  const on = (id, event, action) => element(id).addEventListener(event, action);
  on("form", "submit", (event) => { event.preventDefault(); first && run(); });
  on("stop", "click", () => current?.abort());
  on("preset", "change", choosePreset);
  on("dice", "click", () => { element("seed").value = Math.floor(Math.random() * 1e6); });
  on("share", "click", share);
  on("export", "click", exported);
  on("gif", "click", () => saveFilm("gif", gif));
  on("webm", "click", () => saveFilm("webm", webm));
  on("preview", "click", sharePicture);
  on("erase", "click", () => panes.filter((pane) => pane.erase()).forEach(erased));
  on("scrub", "input", (event) => player.go(Number(event.target.value)));
  on("play", "click", () => player.toggle());
  on("first", "click", () => player.go(0));
  on("back", "click", () => player.move(-1));
  on("forward", "click", () => player.move(1));
  on("last", "click", () => player.go(Infinity));
  on("pace", "change", (event) => { player.pace = event.target.value; });
  for (const choice of document.querySelectorAll("[name=colour]")) {
    choice.addEventListener("change", () => colourBy(choice.value));
  }
  listenToKeys({
    run: () => first && run(), stop: () => current?.abort(), toggle: () => player.toggle(),
    move: (calls) => player.move(calls), go: (calls) => player.go(calls),
    colour: () => colourBy(document.body.dataset.colour === "when" ? "sure" : "when"),
  });
  window.addEventListener("hashchange", restore);
}

theme(element("theme"));
element("run").disabled = true;
element("player").inert = true;
if (NARROW.matches) {
  element("setup").open = element("more").open = element("more-b").open = false;
}
if (STILL.matches) {
  player.pace = element("pace").value = "live";
}
bind();
boot();
