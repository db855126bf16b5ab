"""The page's modules without a browser, in node: the parser of the stream, the trace, the link, and who fits whom."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import unmask
from unmask.cli import trace

WEB = Path(unmask.__file__).parent / "serve" / "web"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")

PLAN = {
    "index": 0,
    "calls": 3,
    "canvas": [None, 7, None, None],
    "pieces": [None, "g", None, None],
    "order": [2, 0, 3],
    "tau": [0.7, 0.5, 0.2],
}
STEPS = [
    {"call": 1, "positions": [2], "tokens": [4], "pieces": [""], "probabilities": [0.5], "tau": [0.7], "entropy": 0.1},
    {
        "call": 2,
        "positions": [0, 2],
        "tokens": [1, 5],
        "pieces": ["a", "c"],
        "probabilities": [0.25, 1.0],
        "tau": [0.5, 0.5],
        "hidden": [2],
        "entropy": 0.2,
    },
    {
        "call": 3,
        "positions": [3],
        "tokens": [6],
        "pieces": ["é"],
        "probabilities": [0.125],
        "tau": [0.2],
        "revised": [[2, "C"]],
        "entropy": 0.3,
    },
]
DONE = {"index": 0, "text": "agCé", "tokens": [1, 7, 5, 6], "nfe": 3, "ncs": 4, "entropy": 0.3, "seconds": 1.0}


def node(module: str, names: str, script: str, **given: Any) -> Any:
    """What a script returns that has a module's names and these values."""
    address = (WEB / module).as_uri()
    source = f"import {{ {names} }} from {json.dumps(address)};\nconst given = {json.dumps(given)};\n"
    source += f"const result = await (async () => {{ {script} }})();\nconsole.log(JSON.stringify(result ?? null));"
    command = [str(NODE), "--input-type=module", "-e", source]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_stream_may_be_cut_anywhere_between_two_bytes() -> None:
    """Every size of chunk from 1 byte on, with both line ends, remarks, fields without a colon and UTF-8."""
    script = """
      const bytes = new TextEncoder().encode(given.text);
      const found = new Set();
      for (let size = 1; size <= bytes.length; size++) {
        const body = new ReadableStream({ start(out) {
          for (let i = 0; i < bytes.length; i += size) out.enqueue(bytes.slice(i, i + size));
          out.close();
        } });
        const seen = [];
        for await (const event of events(body)) seen.push(event);
        found.add(JSON.stringify(seen));
      }
      return [...found].map(JSON.parse);
    """
    text = ': hello\n\nevent: step\r\ndata: {"a": "é神",\r\ndata: "b": 1}\r\nid: 3\r\n\r\n'
    text += "retry\n\nevent:end\ndata:{}\n\n"
    assert node("stream.js", "events", script, text=text) == [[["step", {"a": "é神", "b": 1}], ["end", {}]]]


def test_what_is_not_a_whole_event_is_no_event() -> None:
    script = """
      const body = new Blob(['event: step\\ndata: {"a": 1}\\n\\nevent: step\\ndata: {"a"']).stream();
      const seen = [];
      for await (const event of events(body)) seen.push(event);
      return seen;
    """
    assert node("stream.js", "events", script) == [["step", {"a": 1}]]


def test_the_canvas_is_the_same_forwards_and_backwards() -> None:
    script = """
      const track = new Track(given.plan);
      given.steps.forEach((step) => track.add(step));
      const at = (calls) => structuredClone(track.at(calls));
      const forward = [0, 1, 2, 3].map(at);
      const backward = [3, 2, 1, 0].map(at).reverse();
      return [forward, backward, track.holes, track.curves(3), track.numbers(2), track.surprises()];
    """
    forward, backward, holes, curves, numbers, surprises = node("track.js", "Track", script, plan=PLAN, steps=STEPS)
    assert forward == backward and holes == 3
    assert [[cell["id"] for cell in cells] for cells in forward] == [
        [None, 7, None, None],
        [None, 7, 4, None],
        [1, 7, 5, None],
        [1, 7, 5, 6],
    ]
    assert [cell["piece"] for cell in forward[2]] == ["a", "g", "c", None]
    assert [cell["piece"] for cell in forward[3]] == ["a", "g", "C", "é"]  # a character that became whole
    assert curves["entropy"] == [[1, 0.1], [2, 0.2], [3, 0.3]]
    assert curves["bits"] == [[1, 1.0], [2, pytest.approx((1 + 2 + 0) / 3)], [3, pytest.approx((1 + 2 + 0 + 3) / 4)]]
    assert surprises == [1, 2, 0, 3]
    assert numbers["bits"] == pytest.approx((2 + 0) / 2)  # of what is visible and was drawn


def test_without_a_plan_the_bound_comes_closer() -> None:
    script = """
      const track = new Track({ ...given.plan, order: null, tau: null, calls: 100000 });
      const seen = [track.calls];
      given.steps.forEach((step) => { track.add(step); seen.push(track.calls); });
      const idle = new Track({ ...given.plan, order: null, tau: null, calls: 50 });
      idle.add({ positions: [], tokens: [], probabilities: [] });
      const planned = new Track(given.plan);
      return [seen, idle.calls, planned.calls];
    """
    seen, idle, planned = node("track.js", "Track", script, plan=PLAN, steps=STEPS)
    assert seen == [3, 3, 3, 3] and idle == 50 and planned == 3


def test_an_exported_trace_is_one_that_the_terminal_replays() -> None:
    script = """
      const track = new Track(given.plan);
      given.steps.forEach((step) => track.add(step));
      track.done = given.done;
      return JSON.stringify(track.record({ model: "tiny", seed: 3, sampler: "first-hitting" }));
    """
    record = trace.parse(node("track.js", "Track", script, plan=PLAN, steps=STEPS, done=DONE))
    assert (record["text"], record["seed"], record["model"]) == ("agCé", 3, "tiny")
    assert trace.canvas(record, 9).tolist() == [[9, 7, 9, 9]]
    assert [step.positions.tolist() for step in trace.steps(record)] == [[[2]], [[0, 2]], [[3]]]


def test_a_link_says_everything_there_and_back() -> None:
    first = {"model": "a/b c", "sampler": "parallel", "steps": 8, "predictor": "first-order", "top_p": 0.9}
    text = "a&b=c#d %20+ é\n神 <script> ____"
    states = [
        {"text": text, "seed": 0, "number": 3, "a": first, "b": None},
        {"prompt": text, "length": 12, "seed": 5, "number": 1, "a": first, "b": {"model": "x&y=z", "top_k": 4}},
        {"canvas": [1, None, 0, None, None], "seed": 1, "number": 1, "a": first, "b": None},
        {"length": 7, "seed": 1, "number": 1, "a": first, "b": None},
    ]
    script = "return given.states.map((state) => fromFragment(toFragment(state)));"
    assert node("share.js", "toFragment, fromFragment", script, states=states) == states
    assert node("share.js", "fromFragment", 'return ["", "#", "#stage"].map(fromFragment);') == [None, None, None]


def test_a_link_from_before_predictor_and_decoding_were_two_settings_means_what_it_meant() -> None:
    script = "return given.links.map((link) => fromFragment(link).a);"
    links = [f"#model=kjv&order={order}&steps=4&seed=1" for order in ("1", "correct", "margin")]
    now = [{"predictor": "first-order"}, {"predictor": "correct"}, {"decoding": "margin"}]
    assert node("share.js", "fromFragment", script, links=links) == [{"model": "kjv", "steps": 4, **one} for one in now]


def test_only_what_applies_is_sent() -> None:
    masked, causal = {"kind": "masked"}, {"kind": "left-to-right"}
    cases = [
        (causal, {"sampler": "parallel"}),
        (masked, {"sampler": "published-euler"}),
        (masked, {"sampler": "first-hitting", "predictor": "first-order", "decoding": ""}),
        (masked, {"sampler": "ancestral", "predictor": "correct"}),
        (masked, {"sampler": "parallel", "decoding": "confidence"}),
    ]
    script = "return given.cases.map(([model, chosen]) => [...applicable(model, chosen)]);"
    sent = node("settings.js", "applicable", script, cases=cases)
    shape = ["draw", "temperature", "top_p", "top_k"]
    assert sent == [
        ["model", "ahead", *shape],
        ["model", "sampler", "steps"],
        ["model", "sampler", "predictor", "decoding", "ahead", *shape],
        ["model", "sampler", "steps", "predictor", "decoding", *shape],
        ["model", "steps", "decoding", *shape],
    ]


def test_left_to_right_is_paired_with_its_twin() -> None:
    def model(name: str, kind: str, tokenizer: str) -> dict[str, Any]:
        samplers = ["first-hitting", "published-law"] if kind == "masked" else []
        size = 17 if tokenizer == "levels" else 4096
        return {"id": name, "kind": kind, "tokenizer": tokenizer, "vocab_size": size, "samplers": samplers}

    models = [
        model("digits", "masked", "levels"),
        model("other-ar", "left-to-right", "bpe"),
        model("kjv-ar", "left-to-right", "bpe"),
        model("kjv", "masked", "bpe"),
    ]
    script = """
      const pair = PRESETS["left-to-right"].pair;
      return given.models.map((model) => { const { a, b } = pair(model, given.models); return [a.model, b.model]; });
    """
    pairs = node("presets.js", "PRESETS", script, models=models)
    assert pairs == [["kjv", "kjv-ar"], ["kjv", "other-ar"], ["kjv", "kjv-ar"], ["kjv", "kjv-ar"]]
    script = "return given.models.map((model) => PRESETS.float32.pair(model, given.models).b.model);"
    assert node("presets.js", "PRESETS", script, models=models) == ["kjv"] * 4  # the largest vocabulary shows it best


def test_a_model_of_names_is_offered_samples_and_no_sentence_that_it_cannot_spell() -> None:
    names = {"id": "n", "kind": "masked", "display": "text", "tokenizer": "characters", "length": 11, "samplers": []}
    script = "return given.models.map((one) => examples([one]).map(({title, start}) => [title, start.source]))"
    short, long = node("examples.js", "examples", script, models=[names, names | {"length": 256}])
    assert short[0] == ["Make samples", "empty"] and "Look ahead" not in dict(short)
    assert long[0] == ["Fill the blanks", "text"] and "Look ahead" in dict(long)


def test_a_link_to_a_comparison_finds_its_preset_again() -> None:
    models = [
        {"id": "m", "kind": "masked", "tokenizer": "bpe", "vocab_size": 9, "samplers": ["ancestral", "published-law"]},
        {"id": "m-ar", "kind": "left-to-right", "tokenizer": "bpe", "vocab_size": 9, "samplers": []},
    ]
    script = """
      const { models } = given;
      const pairs = Object.values(PRESETS).map((preset) => preset.pair(models[0], models, { model: "m" }));
      return [Object.keys(PRESETS), pairs.map((pair) => presetOf(pair, models))];
    """
    names, found = node("presets.js", "PRESETS, presetOf", script, models=models)
    assert found == names


def test_a_verdict_says_more_only_if_it_is_more_than_chance() -> None:
    script = """
      const track = (entropy, bits) => ({ done: { entropy }, steps: [1, 2], surprises: () => bits });
      const far = [[track(3.5, [5, 6, 7]), track(3.6, [6, 7, 5])], [track(3.1, [1, 2, 1]), track(3.2, [2, 1, 2])]];
      const near = [[track(3.5, [5, 6, 7])], [track(3.1, [5, 7, 8])]];
      return [verdict(far, true), verdict(near, true), verdict(far, false)];
    """
    far, near, two_models = node("presets.js", "verdict", script)
    assert "likelier, by 4.50" in far["sentence"] and "less varied, by 0.40" in far["sentence"]
    assert "temperature" in far["sentence"] and "temperature" not in two_models["sentence"]
    assert "no more than chance" in near["sentence"]
    assert far["numbers"][0] == {"name": "surprise, bits/token", "a": "6.00", "b": "1.50"}


def test_the_page_asks_only_its_server() -> None:
    """No address of another host in any file of the page, and every part that a file names is there."""
    files = {file.name: file.read_text() for file in WEB.iterdir() if file.suffix != ".png"}
    theirs = {name: files.pop(name) for name in ("smiles-drawer.min.mjs", "smiles-drawer.LICENSE.txt")}
    assert "eval(" not in theirs["smiles-drawer.min.mjs"] and "fetch(" not in theirs["smiles-drawer.min.mjs"]
    assert "MIT License" in theirs["smiles-drawer.LICENSE.txt"]
    for name, content in files.items():
        for line in content.splitlines():
            foreign = [part for part in ("http://", "https://", "@import", "innerHTML", "eval(") if part in line]
            assert foreign in ([], ["http://"]) and (not foreign or "www.w3.org/2000/svg" in line), f"{name}: {line}"
    named = {part.split('"')[0] for content in files.values() for part in content.split('from "./')[1:]}
    named |= {part.split('"')[0] for part in files["index.html"].split('="web/')[1:]}
    assert named <= {*files, *theirs} and set(files) - named == {"index.html"}
