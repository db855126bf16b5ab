import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

import pytest
import torch

import unmask
from tests.small_models import LENGTH, folder
from unmask import loading as find
from unmask.cli import main, texts
from unmask.cli.options import guarded
from unmask.names import SamplerOptions
from unmask.samplers import decoding, published, remasking

pytest.importorskip("tyro")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for kind in ("bpe", "characters", "smiles", "levels"):
        folder(root / kind, kind, length=64 if kind == "levels" else LENGTH)
    folder(root / "causal", causal=True)
    return root


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No box, no cache, no hub: none of this machine's models."""
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(find, "BOX", tmp_path / "box")
    monkeypatch.setattr(find, "_hub_cache", list)


def run(*arguments, **more):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path), "TERM": "xterm-256color"}
    return subprocess.Popen(
        [sys.executable, "-m", "unmask", *map(str, arguments)], env=environment | {"COLUMNS": "80"}, **more
    )


class TestSample:
    def test_python_and_the_command_line_give_the_same_texts(self, models, capfd):
        assert main(["sample", str(models / "smiles"), "--number", "4", "--seed", "3", "--steps", "8"]) == 0
        said = capfd.readouterr()
        assert said.out.splitlines() == unmask.load(models / "smiles").sample(4, seed=3, steps=8).text
        rdkit = pytest.importorskip("rdkit.Chem")
        with pytest.importorskip("rdkit.rdBase").BlockLogs():
            valid = sum(bool(text) and rdkit.MolFromSmiles(text) is not None for text in said.out.splitlines())
        assert said.err == f"{valid} of 4 are valid molecules\n"

    def test_each_molecule_says_whether_it_is_one(self, models, capfd):
        assert main(["sample", str(models / "smiles"), "--number", "4", "--seed", "3", "--json"]) == 0
        for line in capfd.readouterr().out.splitlines():
            record = json.loads(line)
            assert record["valid"] is not record["verdict"].startswith("not a molecule: ")

    def test_wrapped_texts_have_an_empty_line_between_them(self, models, capfd):
        assert main(["sample", str(models / "bpe"), "--number", "3", "--length", "6", "--prompt", "In the "]) == 0
        texts = unmask.load(models / "bpe").sample(3, length=6, prompt="In the ").text
        assert capfd.readouterr().out == "\n\n".join(texts) + "\n"
        assert all(text.startswith("In the ") for text in texts)

    @pytest.mark.parametrize(
        ("flags", "same"),
        [
            (["--sampler", "ancestral", "--steps", "5"], {"plan": unmask.plan.ancestral, "steps": 5}),
            (["--sampler", "first-hitting"], {}),
            (["--steps", "5", "--predictor", "extrapolate"], {"steps": 5, "predict": unmask.predict.extrapolate}),
            (["--steps", "5", "--predictor", "auto"], {"steps": 5, "predict": unmask.predict.extrapolate}),
            (
                ["--steps", "5", "--predictor", "correct", "--batch", "1"],
                {"steps": 5, "predict": unmask.predict.correct},
            ),
            (["--predictor", "auto"], {}),
            (["--decoding", "margin", "--steps", "5"], {"sampler": decoding.margin(), "steps": 5}),
            (["--decoding", "left-to-right", "--steps", "5"], {"plan": unmask.plan.left_to_right, "steps": 5}),
            (
                ["--decoding", "llada", "--block", "6", "--steps", "8", "--temperature", "0"],
                {"sampler": decoding.llada(6), "steps": 8, "temperature": 0.0},
            ),
            (
                ["--decoding", "confidence", "--noise", "2", "--steps", "5"],
                {"sampler": decoding.confidence(noise=2.0), "steps": 5},
            ),
            (["--decoding", "entropy-bounded", "--gamma", "9"], {"sampler": decoding.entropy_bounded(9.0)}),
            (
                ["--decoding", "remdm-cap", "--eta", "0.3", "--steps", "9", "--batch", "1"],
                {"sampler": remasking.remdm_cap(0.3), "steps": 9},
            ),
            (["--sampler", "published-ancestral", "--steps", "9"], {"sampler": published.Coupled(), "steps": 9}),
            (
                ["--sampler", "published-tweedie", "--steps", "9", "--batch", "1"],
                {"sampler": published.sedd_tweedie(), "steps": 9, "batch": 1},
            ),
            (["--ahead", "6"], {"ahead": 6}),
            (["--draw", "inverse-cdf"], {"draw": unmask.draw.inverse_cdf}),
            (["--draw", "gumbel-float32"], {"draw": unmask.draw.gumbel(torch.float32)}),
            (
                ["--temperature", "0.5", "--top-k", "9", "--top-p", "0.8", "--device", "cpu"],
                {"temperature": 0.5, "top_k": 9, "top_p": 0.8},
            ),
        ],
    )
    def test_options_mean_what_they_mean_in_python(self, flags, same, models, capfd):
        assert main(["sample", str(models / "bpe"), "--number", "2", "--seed", "7", "--json", *flags]) == 0
        lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        made = unmask.load(models / "bpe").sample(2, seed=7, **same)
        assert [line["tokens"] for line in lines] == made.tokens.tolist()
        assert [line["text"] for line in lines] == made.text
        assert [line["nfe"] for line in lines] == made.nfe.tolist()

    def test_what_is_saved_says_how_it_was_drawn(self, models, capfd):
        """A judge must be able to say the draw and its precision: they are in every line."""
        for flags, draw, dtype in (
            ([], "exponential-race", "float64"),
            (["--draw", "gumbel-float32"], "gumbel-float32", "float32"),
            (["--sampler", "published-ancestral", "--steps", "4"], "coupled race", "float32"),
        ):
            assert main(["sample", str(models / "characters"), "--length", "4", "--json", *flags]) == 0
            line = json.loads(capfd.readouterr().out)
            assert (line["draw"], line["dtype"]) == (draw, dtype)
        assert main(["sample", str(models / "characters"), "--length", "4", "--json", "--decoding", "margin"]) == 0
        line = json.loads(capfd.readouterr().out)
        assert line["decoding"] == "margin" and "sampler" not in line
        assert main(["sample", str(models / "causal"), "--length", "4", "--json", "--temperature", "0.5"]) == 0
        line = json.loads(capfd.readouterr().out)
        assert (line["sampler"], line["temperature"]) == ("left-to-right", 0.5)

    @pytest.mark.parametrize("flags", [["--ahead"], ["--ahead", "auto"], ["--ahead", "--batch", "1"], ["--ahead", "5"]])
    @pytest.mark.parametrize("name", ["bpe", "causal"])
    def test_ahead_gives_the_same_texts_and_is_recorded(self, flags, name, models, capfd):
        asked = ["sample", str(models / name), "--number", "2", "--json", "--prompt", "And"]
        assert main(asked) == 0
        expected = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert main([*asked, *flags]) == 0
        lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert [line["text"] for line in lines] == [line["text"] for line in expected]
        assert {line["ahead"] for line in lines} == {5 if "5" in flags else "auto"}
        assert all(line["nfe"] <= other["nfe"] for line, other in zip(lines, expected, strict=True))

    def test_ahead_fills_blanks_too(self, models, capfd):
        assert main(["infill", str(models / "bpe"), "And ____ the ________", "--ahead"]) == 0
        ahead = capfd.readouterr().out
        with pytest.raises(SystemExit):
            main(["infill", str(models / "bpe"), "--ahead", "0", "And ____ the ________"])
        assert "ahead must be a whole number" in capfd.readouterr().err
        assert main(["infill", str(models / "bpe"), "And ____ the ________"]) == 0
        assert capfd.readouterr().out == ahead

    def test_beyond_128_steps_auto_corrects(self):
        assert SamplerOptions(predictor="auto", steps=129).arguments()["predict"] is unmask.predict.correct

    def test_a_left_to_right_model_is_sampled_by_the_same_verb(self, models, capfd):
        assert main(["sample", str(models / "causal"), "--number", "2", "--prompt", "And the"]) == 0
        assert capfd.readouterr().out.startswith("And the")
        assert main(["sample", str(models / "causal"), "--steps", "4"]) == 2
        assert capfd.readouterr().err == (
            "unmask sample: a left-to-right model draws one token per call from the beginning: it takes no steps; "
            "leave it out, or take a masked model: kjv\n"
        )

    def test_output_is_written_whole_and_instead_of_stdout(self, models, tmp_path, capfd):
        path = tmp_path / "texts.jsonl"
        path.write_text("old")
        assert main(["sample", str(models / "levels"), "--number", "2", "--json", "--output", str(path)]) == 0
        assert capfd.readouterr().out == ""
        assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [0, 1]
        assert os.listdir(tmp_path) == ["texts.jsonl"]
        for wrong in (tmp_path, tmp_path / "no" / "file"):
            assert main(["sample", str(models / "levels"), "--output", str(wrong)]) == 2
            assert "folder" in capfd.readouterr().err

    def test_without_a_model_the_bundled_one_is_used(self, models, tmp_path, capfd):
        assert main(["sample"]) == 2
        assert "there is no bundled model" in capfd.readouterr().err
        folder(tmp_path / "box" / "verses", "smiles", seed=1)
        assert main(["sample"]) == 0
        assert capfd.readouterr().out == unmask.load("verses").sample().text[0] + "\n"
        folder(tmp_path / "box" / "kjv", "smiles", seed=2)
        assert main(["sample", "--seed", "4"]) == 0
        assert capfd.readouterr().out == unmask.load("kjv").sample(seed=4).text[0] + "\n"


class TestInfill:
    def test_the_blanks_are_filled(self, models, capfd):
        assert main(["infill", str(models / "bpe"), "In the ____ God ____ the heaven", "--number", "3"]) == 0
        for line in capfd.readouterr().out.split("\n\n"):
            assert re.fullmatch(r"In the .* God .* the heaven\n?", line, re.DOTALL)

    def test_a_left_to_right_model_fills_blanks_by_particles(self, models, capfd):
        text = "In the ____ God ____ the heaven"
        assert main(["infill", str(models / "causal"), text, "--number", "2", "--json"]) == 0
        records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        made = unmask.load(models / "causal").infill(text, 2, particles=32)
        assert [record["text"] for record in records] == made.text and made.text[0] != made.text[1]
        for record in records:
            assert (record["sampler"], record["particles"]) == ("left-to-right", 32)
            assert re.fullmatch(r"In the .* God .* the heaven", record["text"], re.DOTALL)
        assert main(["infill", str(models / "causal"), text, "--particles", "3", "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["particles"] == 3

    def test_a_masked_model_proposes_what_a_left_to_right_one_weighs(self, models, capfd):
        text, causal, bpe = "In the ____ of", str(models / "causal"), str(models / "bpe")
        assert main(["infill", causal, text, "--proposal", bpe, "--number", "2", "--json"]) == 0
        made = unmask.load(causal).infill(text, 2, proposal=unmask.load(bpe))
        for record, filled in zip(map(json.loads, capfd.readouterr().out.splitlines()), made.text, strict=True):
            assert record["text"] == filled
            assert (record["sampler"], record["proposal"], record["particles"]) == ("proposal", bpe, 16)
        assert main(["infill", causal, text, "--proposal", causal]) == 2
        assert "must see both sides of a blank" in capfd.readouterr().err
        assert main(["infill", causal, text, "--proposal", bpe, "--steps", "2"]) == 2
        assert "leave out steps" in capfd.readouterr().err

    def test_a_mask_character_is_a_token(self, models, capfd):
        assert main(["infill", str(models / "characters"), "a_b##c", "--mask-character", "#", "--json"]) == 0
        line = json.loads(capfd.readouterr().out)
        assert re.fullmatch(r"a_b.{0,2}c", line["text"], re.DOTALL) and line["nfe"] == line["ncs"] == 2

    def test_the_text_may_come_from_a_pipe(self, models, capfd, monkeypatch):
        import io

        monkeypatch.setattr(sys, "stdin", io.StringIO("the ____ of\nthe ____\n"))
        assert main(["infill", str(models / "characters"), "-"]) == 0
        out = capfd.readouterr().out
        assert re.fullmatch(r"the .{0,4} of\nthe .{0,4}\n", out, re.DOTALL)

    def test_a_text_longer_than_the_training_sequences_is_noted(self, models, capfd):
        assert main(["infill", str(models / "characters"), "the earth " * 4 + "____"]) == 0
        said = capfd.readouterr().err
        assert said.startswith("warning: 46 tokens: ") and f"was trained on {LENGTH} at a time" in said


def test_what_goes_wrong_is_one_line_and_2(models, tmp_path, capfd):
    for arguments, message in (
        (["sample", "xyzzy"], "there is no model 'xyzzy'"),
        (["sample", str(models / "bpe"), "--sampler", "ancestral"], "plan.ancestral needs steps"),
        (
            ["sample", str(models / "bpe"), "--sampler", "first-hitting", "--steps", "5"],
            "plan.first_hitting takes one token per step",
        ),
        (["sample", str(models / "bpe"), "--sampler", "published-euler"], "sampler published-euler needs steps"),
        (
            ["sample", str(models / "bpe"), "--sampler", "published-euler", "--steps", "4", "--top-k", "3"],
            "runs as published: it takes no top_k",
        ),
        (["sample", str(models / "bpe"), "--steps", "0"], "steps must be a whole number of at least 1"),
        (["sample", str(models / "bpe"), "--decoding", "remdm-cap"], "remasking needs steps"),
        (["sample", str(models / "bpe"), "--decoding", "margin", "--eta", "0.1"], "decoding margin takes no eta"),
        (["sample", str(models / "bpe"), "--decoding", "remdm-cap", "--block", "4", "--steps", "4"], "takes no block"),
        (["sample", str(models / "bpe"), "--decoding", "left-to-right", "--block", "4"], "takes no block"),
        (["sample", str(models / "bpe"), "--decoding", "margin", "--sampler", "parallel"], "it takes no sampler"),
        (["sample", str(models / "bpe"), "--decoding", "margin", "--predictor", "correct"], "it takes no predictor"),
        (["sample", str(models / "bpe"), "--gamma", "0.1"], "gamma is for a decoding order"),
        (["sample", str(models / "bpe"), "--temperature", "-1"], "temperature must be"),
        (["sample", str(models / "bpe"), "--number", "0"], "--number must be at least 1, got 0"),
        (["sample", str(models / "bpe"), "--length", "0"], "--length must be at least 1, got 0"),
        (["sample", str(models / "bpe"), "--device", "abacus"], "device='abacus'"),
        (["sample", "--watch", str(tmp_path / "nothing")], "there is no such file or folder"),
        (["infill", str(models / "bpe"), "no blank"], "the text has no blank"),
        (["infill", str(models / "causal"), "a ____", "--steps", "4"], "it takes no steps"),
        (["infill", str(models / "bpe"), "a ____", "--particles", "4"], "--particles 4: a guide weighs them"),
        (["infill", str(models / "smiles"), "zz ____"], "'z' is not among the tokenizer's"),
    ):
        assert main(arguments) == 2, arguments
        said = capfd.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and message in said.err, said.err
        assert said.err.startswith(f"unmask {arguments[0]}: ")


def test_a_wrong_command_line_is_2(models, capfd):
    for arguments in (
        ["sample", "--nonsense"],
        ["sample", "--order", "margin"],
        ["sample", "x", "--predictor", "3"],
        ["infill", "x"],
        ["models", "x"],
    ):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        said = capfd.readouterr()
        assert left.value.code == 2 and said.out == "" and said.err


def test_an_interrupt_is_130_and_says_nothing(capfd):
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert guarded("sample", interrupted) == 130
    assert capfd.readouterr() == ("", "")


class TestModels:
    def test_nothing_there_says_how_to_add_one(self, tmp_path, capfd):
        assert main(["models"]) == 0
        out = capfd.readouterr().out
        assert out.startswith("Bundled: none\n") and f"copy RUN/model to\n{tmp_path / 'cache'}" in out
        assert main(["models", "--json"]) == 0
        assert capfd.readouterr().out == ""

    def test_they_are_listed_with_what_a_reader_must_know(self, tmp_path, capfd):
        folder(tmp_path / "box" / "kjv", extra={"characters_per_token": 3.5})
        folder(tmp_path / "cache" / "models" / "chem", "smiles", causal=True)
        damaged = folder(tmp_path / "cache" / "models" / "damaged")
        (damaged / "tokenizer.json").write_text("{}")
        assert main(["models"]) == 0
        box, cache = capfd.readouterr().out.split("\nIn ")[:2]
        assert re.search(
            r"kjv: masked, 0\.\d MB, 24 tokens, bpe of 300, 3\.50 characters per token, "
            r"3\.250 bits per token; four sentences",
            box,
        )
        assert "chem: left-to-right" in cache and "damaged: cannot be used: " in cache
        assert main(["models", "--json"]) == 0
        lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert [(line["name"], line["where"], line.get("length")) for line in lines] == [
            ("kjv", "box", LENGTH),
            ("chem", "cache", LENGTH),
            ("damaged", "cache", None),
        ]
        assert "not a tokenizer of unmask" in lines[2]["error"]


class TestWatch:
    def test_a_saved_trace_is_replayed_without_its_network(self, models, tmp_path, capfd):
        file, model = tmp_path / "saved.jsonl", folder(tmp_path / "model", "characters")
        assert main(["infill", str(model), "a ____ b", "--number", "2", "--json", "--output", str(file)]) == 0
        (model / "model.safetensors").unlink()
        assert main(["sample", "--watch", str(file)]) == 0
        said = capfd.readouterr()
        texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
        assert said.out == "".join(f"{text}\n" for text in texts)
        assert said.err == ""
        file.write_text(file.read_text() + "nonsense\n")
        assert main(["sample", "--watch", str(file)]) == 2
        assert f"{file}, line 3: not a line that --json wrote" in capfd.readouterr().err

    def test_another_model_may_be_named(self, models, tmp_path, capfd, monkeypatch):
        import io

        assert main(["sample", str(models / "characters"), "--json", "--length", "5"]) == 0
        record = json.loads(capfd.readouterr().out) | {"model": "gone"}
        for arguments, code in (([], 2), ([str(models / "characters")], 0)):
            monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(record)))
            assert main(["sample", *arguments, "--watch", "-"]) == code
        said = capfd.readouterr()
        assert said.out == record["text"] + "\n" and "there is no model 'gone'" in said.err


class TestPipes:
    """In processes of their own, because it is their ends that matter."""

    def test_a_pipe_gets_the_text_and_nothing_else(self, models):
        process = run("sample", models / "smiles", "--number", 3, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate()
        assert process.returncode == 0 and re.fullmatch(rb"\d of 3 are valid molecules\n", err)
        assert out.decode().splitlines() == unmask.load(models / "smiles").sample(3).text

    def test_a_reader_that_leaves_ends_it_quietly(self, models):
        process = run("sample", models / "smiles", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (141, b"")
        process.stderr.close()

    def test_a_terminal_sees_the_canvas_and_then_the_picture(self, models):
        ours, theirs = pty.openpty()
        process = run(
            "sample", models / "levels", "--steps", "16", "--seed", "1", stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        output = b""
        with suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(ours, 1 << 16):
                output += chunk
        os.close(ours)
        assert process.wait() == 0, output
        live, final = output.decode().rsplit("\x1b[2K", 1)
        assert "call 16/16" in live and "tau 0." in live and "left" in live and live.count("\x1b[?25h") == 1
        assert re.fullmatch(r"(?:[ ░▒▓█]*\r\n){9}", final), final


class TestSeeds:
    """On a terminal a fresh seed is drawn and named; elsewhere it is 0, so that files and pipes repeat."""

    @pytest.mark.parametrize("length", [(), ("--length", "6"), ("--max-tokens", "3")])
    def test_the_seed_of_a_terminal_is_named_and_draws_the_same_again(self, models, length, capfd, monkeypatch):
        seen = self.sampled("sample", models, length, capfd, monkeypatch)
        assert len({seed for _, seed in seen}) > 1 and len({text for text, _ in seen}) > 1

    def test_so_do_blanks(self, models, capfd, monkeypatch):
        self.sampled("infill", models, ("God ______ earth",), capfd, monkeypatch)

    def test_a_drawn_seed_is_never_the_one_that_is_not_named(self, models, capfd, monkeypatch):
        monkeypatch.setattr(texts, "MOST_SEED", 2)  # 0 would be drawn in half of the runs
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        for _ in range(10):
            assert main(["sample", str(models / "characters"), "--length", "4"]) == 0
            assert "seed 1: --seed 1 draws this again" in capfd.readouterr().err

    def sampled(self, command, models, arguments, capfd, monkeypatch):
        """The texts and seeds of a few runs, each of which its seed repeats."""
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        asked, seen = [command, str(models / "characters"), *arguments], []
        for _ in range(4):  # all four seeds are the same in one of 1e15 runs
            assert main(asked) == 0
            text, err = capfd.readouterr()
            (seed,) = re.findall(r"^seed ([1-9]\d*): --seed \1 draws this again$", err, re.MULTILINE)
            assert main([*asked, "--seed", seed]) == 0
            again, err = capfd.readouterr()
            assert again == text and "draws this again" not in err
            seen.append((text, seed))
        return seen

    @pytest.mark.parametrize("plain", [("--json",), ()])
    def test_elsewhere_it_is_0(self, models, plain, capfd, monkeypatch):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: bool(plain))  # records name their seed themselves
        name = str(models / "characters")
        assert main(["sample", name, "--length", "6", *plain]) == 0
        out, err = capfd.readouterr()
        assert main(["sample", name, "--length", "6", *plain, "--seed", "0"]) == 0
        assert capfd.readouterr().out == out and "draws this again" not in err


class TestLimits:
    """What a text must be: --contains, --pattern, --particles, --stop, --max-tokens."""

    def test_they_are_those_of_python(self, models, capfd):
        name, model = str(models / "characters"), unmask.load(models / "characters")
        asked = ["--length", "8", "--number", "2", "--contains", "ab", "c", "--pattern", "[a-z ]*"]
        assert main(["sample", name, *asked, "--particles", "2"]) == 0
        told = capfd.readouterr().out
        limits = {"contains": ["ab", "c"], "pattern": "[a-z ]*", "particles": 2}
        texts = model.sample(2, length=8, **limits).text
        assert told == "\n\n".join(texts) + "\n"
        assert all("ab" in text and "c" in text and re.fullmatch("[a-z ]*", text) for text in texts)

    def test_max_tokens_are_those_behind_the_prompt(self, models, capfd):
        name, model = str(models / "bpe"), unmask.load(models / "bpe")
        assert main(["sample", name, "--prompt", "In the ", "--max-tokens", "3", "--stop", "--json"]) == 0
        told = json.loads(capfd.readouterr().out)
        made = model.sample(1, prompt="In the ", max_tokens=3, stop=True)
        assert told["text"] == made.text[0] and told["tokens"] == made.tokens[0].tolist() and told["stop"] is True

    def test_a_blank_with_a_word_in_it(self, models, capfd):
        name = str(models / "characters")
        assert main(["infill", name, "God ______ earth", "--contains", "the"]) == 0
        text = capfd.readouterr().out.strip()
        assert text.startswith("God ") and text.endswith(" earth") and "the" in text

    @pytest.mark.parametrize(
        ("asked", "says"),
        [
            (["--particles", "4"], "--particles 4: a guide weighs them, so give --contains, --pattern or"),
            (["--max-tokens", "4", "--length", "8"], "it must be at least 1, and cannot be combined with --length"),
            (["--pattern", "(a", "--length", "4"], "the regular expression '(a' is not understood"),
            (["--contains", "abcdef", "--length", "4"], "impossible on this canvas"),
            (
                ["--contains", "a", "--stop", "--particles", "2", "--length", "4"],
                "stop cannot be combined with particles",
            ),
        ],
    )
    def test_what_cannot_be_is_said_in_a_sentence(self, models, capfd, asked, says):
        assert main(["sample", str(models / "characters"), *asked]) == 2
        told = capfd.readouterr()
        assert says in told.err and len(told.err.strip().splitlines()) == 1 and told.out == ""
