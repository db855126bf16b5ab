"""``unmask judge``: the table, JSON, the picture, several processes, and what it refuses."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.small_models import TEXT, TOKENIZERS, folder
from unmask.cli import main
from unmask.data.prepare import prepare
from unmask.data.tokens import TokenFile
from unmask.evaluate.judge.judge import Samples, judge, load_judge

TEXTS = [TEXT[:30], TEXT[10:45], "", TEXT[40:80], TEXT[5:95]]


@pytest.fixture
def ar(tmp_path: Path) -> str:
    return str(folder(tmp_path / "ar", causal=True))


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """JSON lines as unmask sample --json writes them, with the draw."""
    path = tmp_path / "samples.jsonl"
    encode = TOKENIZERS["bpe"].encode
    records = [{"text": text, "tokens": encode(text), "nfe": 7, "draw": "gumbel-float32", "steps": 7} for text in TEXTS]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_the_table_has_everything(ar: str, saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", saved, "--judge", ar]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    made = judge(Samples.read(saved), load_judge(ar))
    for part in (
        made.perplexity,
        made.mean_perplexity,
        made.entropy,
        "gumbel-float32, in float32",
        "bootstrap",
        "samples 5",
        "1 of them without a token to judge",
        "distinct-2",
        "no eos is added",
    ):
        assert str(part) in shown


def test_json_output_and_picture(ar: str, saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, output = tmp_path / "judged.png", tmp_path / "judged.json"
    arguments = ["--json", "--output", str(output), "--picture", str(picture), "--level", "0.8"]
    assert main(["judge", saved, "--judge", ar, *arguments]) == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads(output.read_text())
    assert written.pop("per_sequence")["tokens"] == [len(row) for row in load_judge(ar).ids(Samples(TEXTS))]
    assert printed == written
    assert printed["intervals"]["level"] == 0.8 and printed["samples"] == 5 and printed["unjudged"] == 1
    assert printed["perplexity"]["low"] < printed["perplexity"]["value"] < printed["perplexity"]["high"]
    assert printed["about"]["steps"] == 7 and printed["draw"] == "gumbel-float32, in float32"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plain_text_from_stdin(
    ar: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from io import StringIO

    monkeypatch.setattr(sys, "stdin", StringIO("In the beginning\nGod created\n"))
    told = ["--rejection", "texts under two words", "--draw", "mine", "--dtype", "float16"]
    assert main(["judge", "-", "--judge", ar, *told, "--picture", str(tmp_path / "two.png")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "samples 2" in shown and "draw mine, in float16" in shown and "rejection texts under two words" in shown
    assert "of the judge's tokens: the samples have none" in shown


def test_unigrams_of_the_training_data(ar: str, saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 5)
    prepare(tmp_path / "text.txt", tmp_path / "data", tokenizer=TOKENIZERS["bpe"], length=24)
    assert main(["judge", saved, "--judge", ar, "--data", str(tmp_path / "data"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["diversity"]["unigram KL to the data, nats"]
    assert 0 < found < math.log(300)


def test_copies_of_prepared_data_are_told_from_what_is_held_out(
    ar: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four fifths of the training sequences are compared with: these are copies, and held-out ones are not."""
    rng = torch.Generator().manual_seed(0)
    words = [TEXT[i : i + 6].replace("\n", " ") for i in range(60)]
    text = "".join(words[i] for i in torch.randint(60, (6000,), generator=rng))
    (tmp_path / "text.txt").write_text(text)
    data = tmp_path / "data"
    prepare(tmp_path / "text.txt", data, tokenizer=TOKENIZERS["bpe"], length=24, holdout=0.3)
    for part, copied in (("train", True), ("valid", False)):
        rows = TokenFile.open(data / f"{part}.tokens").sequences(range(120))
        samples = tmp_path / f"{part}.jsonl"
        samples.write_text("".join(json.dumps({"text": "a", "tokens": row.tolist()}) + "\n" for row in rows))
        assert main(["judge", str(samples), "--judge", ar, "--data", str(data), "--json"]) == 0
        real = json.loads(capsys.readouterr().out)["real"]
        assert real["differs"] is real["copies"]["differs"] is copied
        assert (real["copied"] > 0.7) is copied and real["copied_of_real"] <= 0.05


@pytest.mark.filterwarnings("ignore")  # of the package's own libraries
@pytest.mark.parametrize(
    ("name", "content"), [("known.txt", "CCO\n"), ("known.smi", "OCC ethanol\n"), ("known.csv", "id,smiles\n1,C(O)C\n")]
)
def test_molecules_are_counted_as_moses_does(
    name: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rdkit")
    samples, known = tmp_path / "samples.txt", tmp_path / name
    samples.write_text("CCO\nOCC\nC1CC\nc1ccccc1\n")
    known.write_text(content)
    chemist = str(folder(tmp_path / "chemist", "bpe", causal=True))
    assert main(["judge", str(samples), "--judge", chemist, "--molecules", str(known), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["diversity"]
    assert found["valid molecules"] == 3 / 4 and found["unique, of the valid"] == 2 / 3
    assert found[f"not in {known}, of the unique"] == 1 / 2


def test_mauve_with_the_judges_features(ar: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mauve")
    samples, references = tmp_path / "samples.txt", tmp_path / "references.txt"
    samples.write_text("".join(f"{TEXT[i : i + 20].strip()}\n" for i in range(30)))
    references.write_text("".join(f"{TEXT[i : i + 20].strip()}\n" for i in range(30, 60)))
    assert main(["judge", str(samples), "--judge", ar, "--mauve", str(references), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["diversity"]
    (name,) = (key for key in found if key.startswith("MAUVE"))
    assert "30 references" in name and 0 < found[name] <= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--judge", "AR", "--draw", "inverse-cdf"], "itself says 'gumbel-float32'"),
        (["--judge", "AR", "--level", "95"], "--level must be between 0 and 1"),
        (["--judge", "AR", "--output", "/no/such/folder/x.json"], "its folder does not exist"),
        (["--judge", "AR", "--first", "given"], "judges the first token, after its start token"),
        (["--judge", "AR", "--data", "missing.tokens"], "no such token file"),
        (["--judge", "AR", "--mauve", "missing.txt"], "missing.txt"),
    ],
)
def test_what_is_refused(
    arguments: list[str], said: str, ar: str, saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", saved, *(ar if argument == "AR" else argument for argument in arguments)]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_a_wrong_command_line(saved: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(["judge", saved, "--no-such-option"])
    assert left.value.code == 2


def test_two_processes_have_the_numbers_of_one(ar: str, saved: str, tmp_path: Path) -> None:
    judge_it = [sys.executable, "-m", "unmask", "judge", saved, "--judge", ar, "--output"]
    common = os.environ | {
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20_000 + os.getpid() % 20_000),
        "WORLD_SIZE": "2",
    }
    started = [
        subprocess.Popen(
            [*judge_it, str(tmp_path / "two.json")],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], printed
    assert [bool(out) for out, _ in printed] == [True, False], "one of them prints"
    torch.set_num_threads(1)
    assert main(["judge", saved, "--judge", ar, "--output", str(tmp_path / "one.json")]) == 0
    assert json.loads((tmp_path / "two.json").read_text()) == json.loads((tmp_path / "one.json").read_text())


def test_a_judge_of_your_own_by_the_name_of_its_function(
    saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It knows the distribution of the data, so the samples' nats are compared with the data's own."""
    (tmp_path / "known_law.py").write_text(
        "import torch, unmask\n"
        "from unmask.evaluate.judge.oracle import OracleJudge\n"
        "class Uniform:\n"
        "    vocab_size = 300\n"
        "    def judged_nats(self, tokens):\n"
        "        return torch.full(tokens.shape, 2.0, dtype=torch.float64)\n"
        "def judge():\n"
        "    return OracleJudge(Uniform(), 'the law', 'every token')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["judge", saved, "--judge", "known_law:judge", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["judge"] == "the law" and made["perplexity"]["value"] == pytest.approx(math.exp(2))
    assert main(["judge", saved, "--judge", "known_law:other"]) == 2
    assert "there is no 'other' in 'known_law:other'" in capsys.readouterr().err
    assert main(["judge", saved, "--judge", "known_law:judge", "--window", "3"]) == 2
    assert "takes no options: leave window and first out" in capsys.readouterr().err
