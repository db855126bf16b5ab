"""From a finished run to a model in the box: half precision, measured as it is shipped, with its card.

    python -m recipes.box kjv runs/kjv          store the run's model, measure it, write its card
    python -m recipes.box kjv --measure         measure what is stored, write its card
    python -m recipes.box kjv --margin          how many bits counting needs more, with the error of the difference
    python -m recipes.box kjv --mixture 2       a tighter bound by the mean probability over 2 orders, with its margin
    python -m recipes.box kjv                   write the card: its samples anew, its numbers as they were measured

A model has src/unmask/box/NAME. Its measured numbers are docs/results/box/NAME.json and ngram5-DATA.json, and its check
is tests/recipes/box/NAME.json: held-out sequences and their bound, which a test computes again. Beside each bound is
what counting gives: a Kneser-Ney model fitted on the same training part. Its order is 5 for all of them, so that no
held-out number has chosen it; molecules, whose tokens are short, have a 7-gram as well, and stories a 3-gram. A model
that does not beat all of these by more than two errors is not bundled: tests/recipes/test_box.py holds every model to
this. A model whose default order is left to right is measured along it, exactly, and by its bound over random orders as
well (NAME-random.json). The bound by several orders costs a network call per token and order, so few have it
(NAME-mixture.json).
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import unmask
from recipes.corpora import synthetic
from unmask.bound import Bound
from unmask.data import corpora
from unmask.data.tokens import TokenFile
from unmask.evaluate.likelihood.evaluation import Evaluation
from unmask.evaluate.likelihood.tokenfiles import evaluate, evaluate_ngram
from unmask.files import sha256_of
from unmask.likelihood import By
from unmask.model import Model
from unmask.networks import pretrained
from unmask.training.config import read_toml

ROOT = Path(__file__).parents[1]
BOX, CHECKS, RESULTS = ROOT / "src/unmask/box", ROOT / "tests/recipes/box", ROOT / "docs/results/box"
ORDER, MOST, PASSES, SEED = 5, 1024, 16, 0
OTHERS = {"molecules": (7,), "stories": (3,), "stories-masked": (3,)}  # orders beside ORDER
SLICE, SLICE_PASSES, STRETCH, BATCH = 24, 8, 16, 32
SYNTHETIC = {  # a folder of drawn data: what python -m recipes.prepare is given
    "data/stories": "stories data/stories",
    "data/stories9": "stories data/stories9 --tokens 8878080 --held-out-tokens 1044480",
    "data/sudoku6": "sudoku6 data/sudoku6",
    "data/sudoku9": "sudoku9 data/sudoku9",
}
COMMANDS = {
    "molecules": "unmask train --config recipes/molecules.toml --init runs/molecules-start --out runs/molecules",
    "sudoku9": "unmask train --config recipes/sudoku9.toml --init runs/sudoku9-start --decay cosine --warmup 0 "
    "--ema 0.98 --steps 650 --out runs/sudoku9",
    "stories": "python -m recipes.stories runs/stories-start runs/stories",
    "stories-masked": "unmask train data/stories9 --config recipes/stories-masked.toml "
    "--init runs/stories-masked-start --out runs/stories-masked",
}
DISPLAYS = {"sudoku": "grid", "sudoku9": "grid"}
RANDOM = "-random"  # behind a name: its bound over random orders, if that is not its default
MIXTURE = "-mixture"  # behind a name: its bound by the mean probability over several random orders
TINY = 1e-12
BELOW = "bits_per_token_below_ngram"  # by the n-gram model's order
TRUTH, DISTANCE = "truth_nats_per_token", "distance_from_truth_nats_per_token"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--margin", action="store_true")
    parser.add_argument("--mixture", type=int, metavar="ORDERS")
    parser.add_argument("--number", type=int, default=MOST, help="held-out sequences at most (default: %(default)s)")
    parser.add_argument("--passes", type=int, default=PASSES, help="over each of them (default: %(default)s)")
    parser.add_argument("--notes", help="what else its card should say, for example measured validity")
    parser.add_argument("--seen", type=int, default=0, help="tokens that the runs before this one saw")
    chosen = parser.parse_args()
    if chosen.margin:
        print(json.dumps(measured_margins(chosen.name), indent=1))
        return
    if chosen.mixture:
        print(json.dumps(measured_mixture(chosen.name, chosen.mixture), indent=1))
        return
    if chosen.run:
        store(chosen.name, chosen.run, chosen.notes, chosen.seen)
    if chosen.run or chosen.measure:
        measure(chosen.name, chosen.number, chosen.passes)
    print(json.dumps(asdict(describe(chosen.name)), indent=2))


def store(name: str, run: Path, notes: str | None = None, seen: int = 0) -> None:
    """The run's model in half precision, and what its training says of it."""
    trained = unmask.load(run)
    header = pretrained.read_header(run / "model")
    card = trained.denoiser.card
    card = replace(card, tokens_seen=card.tokens_seen + seen, notes="; ".join(filter(None, [card.notes, notes])))
    pretrained.save(BOX / name, trained.denoiser, card=card, half=True, extra=header["extra"])
    trained.tokenizer.save(BOX / name / "tokenizer.json")


def data_of(name: str) -> str:
    """The data of a model as a command names them: a corpus, or a folder of drawn data."""
    data: str = read_toml(ROOT / f"recipes/{name}.toml")["data"]
    return data


def described(data: str) -> tuple[str, str]:
    """What the data are, and their licence."""
    if (arguments := SYNTHETIC.get(data)) is None:
        corpus = corpora.load(data)
        return f"{corpus.name}: {corpus.note}", corpus.licence
    corpus_name = arguments.split()[0]
    licence, note = synthetic.ABOUT[corpus_name]
    return f"{corpus_name}: {note}; made by `python -m recipes.prepare {arguments}`", licence


def measure(name: str, most: int = MOST, passes: int = PASSES) -> None:
    """The held-out bound of what is stored and of counting, and the slice that a test checks."""
    model, data = unmask.load(BOX / name), data_of(name)
    _, held_out = token_files(data)
    number = None if len(held_out) <= most else most
    RESULTS.mkdir(parents=True, exist_ok=True)
    own, counted = evaluations(name, number, passes)
    several, few = model.process.from_left and not model.process.exact, {} if passes == PASSES else {"passes": passes}
    along = {} if several else few
    write(name, name, data, own, {BELOW: margins(own, counted)}, number=number, **along)
    for order, one in counted.items():
        write(stem_of(order, data), f"ngram:{order}", data, one, number=number)
    if several:
        made = evaluate(model, held_out, by="count", passes=passes, sequences=number, seed=SEED)
        write(f"{name}{RANDOM}", name, data, made, number=number, by="count", **few)

    tokens, passes = held_out.sequences(torch.arange(SLICE) * len(held_out) // SLICE), min(passes, SLICE_PASSES)
    bits = bits_per_token(model, tokens, passes)
    check = {
        "sha256": sha256_of(BOX / name / pretrained.WEIGHTS),
        "passes": passes,
        "bits_per_token": float(bits.mean()),
        "error": float(bits.std()) / math.sqrt(len(tokens)),
        "tokens": tokens.tolist(),
    }
    CHECKS.mkdir(exist_ok=True)
    (CHECKS / f"{name}.json").write_text(json.dumps(check) + "\n")


def write(
    stem: str, model: str, data: str, made: Evaluation, more: dict[str, Any] | None = None, **options: object
) -> None:
    """A measurement, with the command that prints it."""
    told = "".join(f" --{name} {value}" for name, value in options.items() if value is not None)
    found = made.to_dict(sequences=False) | {"model": model, "data": data} | (more or {})
    found.pop("profile", None)
    command = f"unmask evaluate {model} {data}{told} --json"
    (RESULTS / f"{stem}.json").write_text(json.dumps({"command": command, **found}, indent=1) + "\n")


def stem_of(order: int, data: str) -> str:
    """Of the file with an n-gram model's numbers."""
    return f"ngram{order}-{Path(data).name}"


def token_files(data: str) -> tuple[TokenFile, TokenFile]:
    """The training part and the held-out one."""
    folder = Path(data) if data in SYNTHETIC else corpora.prepared(data)
    return TokenFile.open(folder / "train.tokens"), TokenFile.open(folder / "valid.tokens")


def evaluations(
    name: str, number: int | None, passes: int, by: By | None = None, partial: Path | None = None
) -> tuple[Evaluation, dict[int, Evaluation]]:
    """Of what is stored, and of counting by its order, on the same sequences."""
    train, held_out = token_files(data_of(name))
    model = unmask.load(BOX / name)
    own = evaluate(model, held_out, by=by, passes=passes, sequences=number, seed=SEED, batch=BATCH, partial=partial)
    return own, {n: evaluate_ngram(n, train, held_out, sequences=number) for n in orders(name)}


def measured_mixture(name: str, passes: int) -> dict[str, Any]:
    """The bound by several orders on the sequences of the card, with its margins; an interrupted run goes on."""
    usual, by = measured(name), "mixture"
    number = None if usual["sequences"] == usual["of_sequences"] else usual["sequences"]
    partial = RESULTS / f"{name}{MIXTURE}.partial"
    own, counted = evaluations(name, number, passes, by, partial)
    found = {BELOW: margins(own, counted)}
    write(f"{name}{MIXTURE}", name, usual["data"], own, found, number=number, by=by, passes=passes)
    partial.unlink()
    return found


def measured_margins(name: str) -> dict[str, Any]:
    """The margins of what is stored, with the sequences and passes of its card; kept with its numbers."""
    found = measured(name)
    found[BELOW] = margins(*evaluations(name, found["sequences"], found["passes"]))
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    return found[BELOW]


def margins(own: Evaluation, counted: dict[int, Evaluation]) -> dict[str, Any]:
    """By how many bits per token the model is below each n-gram model, paired: sequence by sequence.

    Sequences in a row may be alike, so there is the error over stretches of them as well.
    """
    made, most = {}, own.bound.sequences // STRETCH * STRETCH
    for order, one in counted.items():
        nats, tokens = one.bound.nats - own.bound.nats, own.bound.tokens
        sums = (of[:most].view(-1, STRETCH).sum(1) for of in (nats, own.bound.errors.square(), tokens))
        value, estimate, error = replace(own.bound, nats=nats).units()["bits per token"]
        *_, longer = Bound(*sums).units()["bits per token"]
        made[str(order)] = {
            "value": value,
            "error_of_estimate": estimate,
            "error_over_sequences": error,
            f"error_over_{STRETCH}_in_a_row": longer,
        }
    return made


def margin(name: str, order: int) -> tuple[float, float]:
    """The stored margin and its error; where it was not measured, the difference of the two means, not paired."""
    found = measured(name)
    if paired := found.get(BELOW, {}).get(str(order)):
        return paired["value"], paired["error_over_sequences"]
    own, counted = found["bits_per_token"], measured(stem_of(order, found["data"]))["bits_per_token"]
    error = math.hypot(own["error_over_sequences"], counted["error_over_sequences"])
    return counted["value"] - own["value"], error


def describe(name: str) -> pretrained.Card:
    """Write the card from the stored numbers, with the samples that the seed gives; the weights stay as they are."""
    folder, (data, licence) = BOX / name, described(data_of(name))
    stored, before = unmask.load(folder), sha256_of(folder / pretrained.WEIGHTS)
    header = pretrained.read_header(folder)
    found = measured(name)
    bits, exact = found["bits_per_token"], found["exact"]
    of = "all" if found["sequences"] == found["of_sequences"] else f"{found['of_sequences']:,} evenly spaced:"
    held_out = f"{of} {found['sequences']:,} held-out sequences of {found['length']} tokens"
    card = replace(
        stored.denoiser.card,
        data=data,
        license=licence,
        bound=bits["value"],
        bound_error=bits["error_over_sequences"],
        estimate_error=None if exact else bits["error_of_estimate"],
        held_out=held_out if exact else f"{held_out}, {found['passes']} passes each",
        measured_by=found["command"].removesuffix(" --json"),
        random_order=_other_bound(f"{name}{RANDOM}"),
        mixture=_other_bound(f"{name}{MIXTURE}"),
        ngram=counting(name, data_of(name)),
        truth=_truth(found),
        command=COMMANDS.get(name, f"unmask train --config recipes/{name}.toml --out runs/{name}"),
        samples=stored.sample(3, seed=SEED).text,
        display=DISPLAYS.get(name),
    )
    pretrained.save(folder, stored.denoiser, card=card, half=True, extra=header["extra"])
    assert sha256_of(folder / pretrained.WEIGHTS) == before, "float16 weights survive the way to float32 and back"
    return card


def orders(name: str) -> tuple[int, ...]:
    return (ORDER, *OTHERS.get(name, ()))


def counting(name: str, data: str) -> str:
    """What n-gram models of the same training part give on the same sequences, and by which commands."""
    first, *more = (measured(stem_of(order, data)) for order in orders(name))
    told = (
        f"{shown(first)} bits per token, a Kneser-Ney {ORDER}-gram model (order {ORDER} on every card) fitted "
        f"on the training part, on the same sequences; `{first['command'].removesuffix(' --json')}`"
    )
    others = zip(orders(name)[1:], more, strict=True)
    return told + "".join(
        f"; a {order}-gram model {shown(one)}; `{one['command'].removesuffix(' --json')}`" for order, one in others
    )


def also_measured(stem: str) -> dict[str, Any] | None:
    """A second measurement of a model, if it has one."""
    return measured(stem) if (RESULTS / f"{stem}.json").exists() else None


def _other_bound(stem: str) -> str | None:
    if (found := also_measured(stem)) is None:
        return None
    far = found.get(DISTANCE)
    truth = "" if far is None else f", at most {far['value'] / math.log(2):.3f} from the truth"
    own = found["bits_per_token"]["error_of_estimate"]
    error = f"over the sequences, of which the estimate's own error is {own:.2g}"
    return f"{shown(found)} ({error}) bits per token{truth}; `{found['command'].removesuffix(' --json')}`"


def _truth(found: dict[str, Any]) -> str | None:
    """Of data that were drawn from a known law: its own bits, and how far the model is from it."""
    if TRUTH not in found:
        return None
    own, far = ([x / math.log(2) for x in found[key].values()] for key in (TRUTH, DISTANCE))
    most = "" if found["exact"] else "at most "
    error = f" ± {own[1]:.2g}" if own[1] > TINY else ""  # all sequences may be equally likely
    return (
        f"{own[0]:.3f}{error} bits per token by the law that the data were drawn from; the model is {most}"
        f"{far[0]:.3f} ± {far[1]:.2g} from it (Kullback-Leibler)"
    )


def measured(stem: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{stem}.json").read_text())
    return found


def shown(found: dict[str, Any]) -> str:
    return f"{found['bits_per_token']['value']:.3f} ± {found['bits_per_token']['error_over_sequences']:.2g}"


def table() -> str:
    """The table of docs/models.md: bounds beside what counting gives, and sizes."""
    lines = ["| | held-out bits per token | 5-gram model | parameters | tokens seen |", "|---|---|---|---|---|"]
    for name in sorted(path.name for path in BOX.iterdir() if (RESULTS / f"{path.name}.json").exists()):
        network, found = unmask.load(BOX / name).denoiser, measured(name)
        parameters = sum(one.numel() for one in network.parameters())
        bound = shown(found) + (" (exact)" if found["exact"] else "")
        if other := also_measured(f"{name}{RANDOM}"):
            bound = f"{shown(found)} from left to right (exact), {shown(other)} in random orders"
        counted = shown(measured(stem_of(ORDER, found["data"])))
        lines.append(
            f"| `{name}` | {bound} | {counted} | {parameters / 1e6:.2f} M | {network.card.tokens_seen / 1e6:.1f} M |"
        )
    return "\n".join(lines)


def bits_per_token(model: Model, tokens: torch.Tensor, passes: int) -> torch.Tensor:
    """The bound of each sequence in bits per token."""
    scale = 1 / tokens.shape[1] / math.log(2)
    return unmask.nelbo(model.denoiser, tokens, passes=passes, schedule=model.schedule).nats * scale


if __name__ == "__main__":
    main()
