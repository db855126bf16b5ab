import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from tests.evaluate.files import LENGTH, TOKENIZER, read, write
from tests.small_models import TEXT, TOKENIZERS, folder, network
from tests.training.runs import settings
from unmask.cli import main as cli
from unmask.cli.evaluate import main
from unmask.data.tokens import TokenFile
from unmask.evaluate.data import found
from unmask.networks.ngram import kneser_ney
from unmask.networks.pretrained import save
from unmask.training.loop import train


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("masked") / "model"
    save(path, network(TOKENIZER, length=LENGTH), extra={"layout": "rows"})
    TOKENIZER.save(path / "tokenizer.json")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder."""
    path = tmp_path_factory.mktemp("data")
    for name, seed in (("train", 1), ("valid", 2)):
        write(path / f"{name}.tokens", seed=seed)
    TOKENIZER.save(path / "tokenizer.json")
    return path


def test_a_table_on_the_terminal(model: Path, data: Path, capsys: Any) -> None:
    assert cli(["evaluate", str(model), str(data), "--passes", "4", "--number", "6", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    index = torch.tensor([0, 1, 3, 4, 6, 7])
    x0 = TokenFile.open(data / "valid.tokens").sequences(index)
    bound = unmask.nelbo(unmask.load(model).denoiser, x0, passes=4, index=index)
    for part in (
        "bound by count (Eq. 7), 4 passes, seed 0",
        "6 of 9 sequences of 10 tokens",
        "nats per token",
        "perplexity",
        "bits per token",
        "bits per character",
        "± estimate",
        "± sequences",
        f"{bound.nats_per_token:.4f}"[:5],
        f"{bound.error_of_estimate:.2g}",
    ):
        assert part in shown


def test_json_the_result_file_and_a_picture(model: Path, data: Path, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    out, png = tmp_path / "r.json", tmp_path / "r.png"
    arguments = [str(model), str(data), "--passes", "4", "--device", "cpu", "--json", "--split", "train"]
    assert main([*arguments, "--output", str(out), "--picture", str(png)]) == 0
    told = json.loads(capsys.readouterr().out)
    made = read(out)
    assert made == told | {"per_sequence": made["per_sequence"]} and len(made["per_sequence"]["nats"]) == 9
    bits = made["bits_per_token"]
    assert bits["value"] == pytest.approx(made["nats_per_token"]["value"] / math.log(2))
    assert min(bits["error_of_estimate"], bits["error_over_sequences"]) > 0
    assert png.read_bytes().startswith(b"\x89PNG") and sorted(p.name for p in tmp_path.iterdir()) == ["r.json", "r.png"]
    other = tmp_path / "valid.json"
    assert main([str(model), str(data), "--passes", "4", "--device", "cpu", "--output", str(other)]) == 0
    assert read(other)["nats_per_token"] != made["nats_per_token"], "the held-out part is the default"


def test_a_left_to_right_model_has_one_error(tmp_path: Path, data: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "model"
    save(path, network(TOKENIZER, length=LENGTH, causal=True), extra={"layout": "rows"})
    TOKENIZER.save(path / "tokenizer.json")
    assert main([str(path), str(data / "valid.tokens"), "--device", "cpu", "--picture", str(tmp_path / "p.png")]) == 0
    shown = capsys.readouterr().out
    assert "exact, left to right" in shown and "± estimate" not in shown and "± sequences" in shown
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_what_was_begun_is_continued(model: Path, data: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    from unmask.evaluate.likelihood import tokenfiles

    arguments = [str(model), str(data), "--passes", "4", "--batch", "6", "--device", "cpu", "--output"]
    assert main([*arguments, str(tmp_path / "whole.json")]) == 0
    compute, calls = tokenfiles._Estimate.__call__, []

    def interrupted(self: Any, piece: Any) -> Any:
        calls.append((int(piece[1][0]), int(piece[2][0])))  # the first sequence of the batch, and its pass
        if len(calls) == 4:
            raise KeyboardInterrupt
        return compute(self, piece)

    monkeypatch.setattr(tokenfiles._Estimate, "__call__", interrupted)
    out = tmp_path / "r.json"
    capsys.readouterr()
    assert main([*arguments, str(out)]) == 130
    assert "the same command goes on from here" in capsys.readouterr().err
    assert not out.exists() and (tmp_path / "r.json.partial").is_file()
    assert main([*arguments, str(out), "--seed", "1"]) == 2
    assert "seed: 0 -> 1" in capsys.readouterr().err
    assert main([*arguments, str(out)]) == 0
    assert calls[3] == calls[4] and len(set(calls)) == 6 == len(calls) - 1, "the finished ones are not computed again"
    assert read(out) == read(tmp_path / "whole.json") and not (tmp_path / "r.json.partial").exists()
    (tmp_path / "r.json.partial").write_text('{"seed": 5}\n')
    assert main([*arguments, str(out)]) == 2
    assert main([*arguments, str(out), "--no-resume"]) == 0


def test_a_text_is_laid_out_as_the_training_data_were(tmp_path: Path, capsys: Any) -> None:
    text = tmp_path / "genesis.txt"
    text.write_text(TEXT)
    model = unmask.load(folder(tmp_path / "model", "characters"))
    with found(str(text), model) as tokens:
        assert tokens.length == model.length and tokens.header.layout == "wrapped"
        assert tokens.header.source == str(text) and len(tokens) > 10
        ids = tokens.sequences([0])[0].tolist()
    assert model.decode(ids).strip().startswith("In the beginning")
    assert main([str(tmp_path / "model"), str(text), "--passes", "2", "--number", "4", "--device", "cpu"]) == 0
    assert "genesis.txt" in capsys.readouterr().out


def test_a_corpus_is_found_or_prepared_with_the_models_tokenizer(tmp_path: Path, monkeypatch: Any) -> None:
    from unmask.data import corpora

    tokenizer = TOKENIZERS["levels"]
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))
    texts = [" ".join(["3"] * 64)] * 40
    corpus = corpora.Corpus("digits", lambda: {"train": texts}, "", "", tokenizer, 64, layout="rows")
    monkeypatch.setattr(corpora, "load", lambda name, cache=None: corpus)
    model = unmask.Model(network(tokenizer, length=64), tokenizer, layout="rows")
    for _ in range(2):
        with found("digits", model) as tokens:
            assert len(tokens) == 2 and tokens.length == 64
    assert len(list((tmp_path / "prepared").iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.txt"], "there is no such file or folder, and no such corpus"),
        (["kjvv"], "there is no such file or folder, and no such corpus"),
        (["DATA", "--output", "no/such/folder.json"], "its folder does not exist"),
        (["DATA", "--passes", "0"], "passes must be at least 1"),
        (["DATA", "--until", "-1"], "until must be above 0"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], message: str, model: Path, data: Path, capsys: Any) -> None:
    arguments = [str(data) if argument == "DATA" else argument for argument in arguments]
    assert main([str(model), *arguments, "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_wrong_command_line_is_2(model: Path) -> None:
    with pytest.raises(SystemExit) as error:
        main([str(model), "digits", "--by", "chance"])
    assert error.value.code == 2


def test_an_n_gram_model_is_fitted_on_the_training_part(data: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "r.json"
    assert main(["ngram:2", str(data), "--output", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "exact, modified Kneser-Ney 2-gram fitted on 90 tokens" in shown and "9 sequences of 10 tokens" in shown
    train, valid = (TokenFile.open(data / f"{part}.tokens").sequences(range(9)).numpy() for part in ("train", "valid"))
    expected = -kneser_ney(train, 2, TOKENIZER.vocab_size).log_prob(valid).mean()
    assert read(out)["nats_per_token"]["value"] == pytest.approx(expected)
    assert main(["ngram:2", str(data), "--split", "train", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nats_per_token"]["value"] < expected


def test_an_n_gram_model_that_cannot_be_fitted_is_refused(data: Path, capsys: Any) -> None:
    for model, where, told in (
        ("ngram:0", data, "it must be ngram:N with N from 1 to 20"),
        ("ngram:five", data, "it must be ngram:N"),
        ("ngram:5", data / "valid.tokens", "has no training part"),
    ):
        assert main([model, str(where)]) == 2
        assert told in capsys.readouterr().err


def test_a_run_is_evaluated_on_its_held_out_part_and_overlap_is_reported(tmp_path: Path, capsys: Any) -> None:
    random = torch.Generator().manual_seed(0)
    text = "".join(chr(97 + int(i)) for i in torch.randint(26, (4000,), generator=random))
    book, copied = tmp_path / "book.txt", tmp_path / "copied.txt"
    book.write_text(text)
    copied.write_text(text[:1000] + text[:1000][::-1])
    run = tmp_path / "run"
    train(settings(book, run, tokenizer="characters", length=20, steps=1))
    options = ["--passes", "2", "--device", "cpu", "--json"]
    values = []
    for data in ([], [str(book)], [str(run)]):
        assert main([str(run), *data, *options]) == 0
        shown = capsys.readouterr()
        values.append(json.loads(shown.out)["nats_per_token"]["value"])
        assert "WARNING" not in shown.err
        assert ("the run's own held-out part" in shown.err) == (data != [str(run)])
    assert len(set(values)) == 1
    assert main([str(run), str(copied), *options]) == 0
    assert "WARNING: 47%" in (said := capsys.readouterr().err) and "this is not a held-out result" in said
    copied.write_text(text[:300] + text[3800:] * 17)
    assert main([str(run), str(copied), *options]) == 0
    assert "note: 4.9% of these data are copied" in (said := capsys.readouterr().err) and "WARNING" not in said
    assert main([str(run), "--split", "train", *options]) == 0
    assert "WARNING: 100% of these data are in the run's training data" in capsys.readouterr().err
    assert main([str(run / "model"), *options]) == 0
    tokens = run / "data" / "valid.tokens"
    tokens.write_bytes(tokens.read_bytes()[:-50] + bytes(50))
    capsys.readouterr()
    assert main([str(run), *options]) == 2 and "valid.tokens is damaged" in capsys.readouterr().err


def test_a_model_that_is_no_run_needs_data(model: Path, capsys: Any) -> None:
    assert main([str(model), "--device", "cpu"]) == 2
    assert "does not say its data: name the DATA" in capsys.readouterr().err


def test_zero_shot_is_the_bound_of_each_data_set_with_the_models_own_tokenizer(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """A stand-in for a corpus, a text, and one with letters that the tokenizer does not have."""
    from unmask.data import corpora
    from unmask.evaluate.likelihood.zero_shot import held_out

    model = folder(tmp_path / "model", "characters")
    text = "".join("abcdefghij"[i * i % 7 + i % 3] for i in range(40_000))
    stand_in = corpora.Corpus("sotu", lambda: {"train": [text]}, "none", "a stand-in", "characters", LENGTH)
    monkeypatch.setattr(corpora, "load", lambda name, cache=None: stand_in)
    assert held_out("sotu", 150) == text[38_000:38_150]
    (tmp_path / "own.txt").write_text(text[:1_000], encoding="utf-8")
    (tmp_path / "other.txt").write_text("\u2603" * 50, encoding="utf-8")
    data = f"sotu,{tmp_path}/own.txt,{tmp_path}/other.txt"
    arguments = [str(model), data, "--zero-shot", "--passes", "4", "--number", "6", "--device", "cpu"]
    assert main([*arguments, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [one["data"] for one in records] == data.split(",") and "error" in records[2]
    assert main([str(model), f"{tmp_path}/own.txt", "--passes", "4", "--number", "6", "--json", "--device", "cpu"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert records[1]["perplexity"] == alone["perplexity"] and records[1]["law"] == "in a random order"
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert f"{records[1]['perplexity']['value']:.5g}" in shown and "left out" in shown and "± sequences" in shown
