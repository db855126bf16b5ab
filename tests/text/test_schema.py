"""Answers that satisfy a JSON Schema: their distribution is the model's own, given that they do."""

import json
import math

import pytest
import torch

pytest.importorskip("outlines_core", reason="JSON Schemas are an extra: pip install 'unmask[schema]'")

import unmask
from tests.helpers import FALSE_ALARM, chi_square, codes, total_variation
from tests.small_models import small
from unmask import Model, OptionError
from unmask.cli import main
from unmask.networks.causal import Causal
from unmask.networks.ddit import DDiT
from unmask.networks.oracles.enumerated import EnumeratedOracle
from unmask.tokenizers.vocabularies import characters

SCHEMA = {"type": "array", "items": {"enum": [1, 11]}}
LETTERS = characters("[],1")  # and eos
V, L = LETTERS.vocab_size, 5
EVERY = torch.cartesian_prod(*[torch.arange(V)] * L)
SIZES = {"vocab_size": V, "mask_id": V, "length": L + 1, "width": 16, "layers": 1, "heads": 2}


def fits(rows: torch.Tensor) -> torch.Tensor:
    """Whether each row, up to its first eos, is JSON that satisfies the schema, by parsing it."""

    def one(row: list[int]) -> bool:
        text = LETTERS.decode(row[: row.index(LETTERS.eos_id)] if LETTERS.eos_id in row else row)
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            return False
        return isinstance(value, list) and all(item in (1, 11) for item in value)

    return torch.tensor([one(row) for row in rows.tolist()])


def cut(rows: torch.Tensor) -> torch.Tensor:
    """Rows with eos behind their first eos."""
    return torch.where((rows == LETTERS.eos_id).long().cumsum(1) > 0, LETTERS.eos_id, rows)


def truth(joint: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The law of the cut text given that it fits, over all rows, and the probability that it does."""
    weights = joint.flatten() * fits(EVERY)
    law = torch.zeros(V**L, dtype=torch.float64).index_add_(0, codes(cut(EVERY), V), weights)
    return law / law.sum(), float(weights.sum())


def random_joint(*, independent: bool) -> torch.Tensor:
    source = torch.Generator().manual_seed(3)
    if not independent:
        ones = (LETTERS.encode("1")[0] == EVERY).sum(1).view([V] * L)  # rarely an odd number of them
        joint = torch.rand([V] * L, dtype=torch.float64, generator=source) * torch.where(ones % 2 == 0, 1.0, 0.01)
        return joint / joint.sum()
    rows = torch.rand(L, V, dtype=torch.float64, generator=source) + 0.1
    joint = torch.ones((), dtype=torch.float64)
    for row in rows / rows.sum(1, keepdim=True):
        joint = joint.unsqueeze(-1) * row
    return joint


def oracle(joint: torch.Tensor) -> Model:
    return Model(EnumeratedOracle(joint), LETTERS, layout="rows")


def test_the_guide_is_exact_where_tokens_are_independent() -> None:
    """One particle: the law is the conditional, and each weight is the probability of the schema."""
    joint = random_joint(independent=True)
    law, evidence = truth(joint)
    made = oracle(joint).sample(6000, length=L, schema=SCHEMA, seed=2)
    assert bool(fits(made.tokens).all()) and torch.equal(made.tokens, cut(made.tokens))
    assert chi_square(torch.bincount(codes(made.tokens, V), minlength=V**L), law) > FALSE_ALARM
    assert made.population is not None
    assert torch.allclose(made.population.log_evidence.exp(), torch.tensor(evidence).double())


def test_particles_make_it_exact_for_any_joint() -> None:
    """The distance of the weighted population to the conditional, which one particle does not have."""
    joint, num = random_joint(independent=False), 1500
    law, evidence = truth(joint)
    distance = {}
    for each in (1, 24):
        made = oracle(joint).sample(num, length=L, schema=SCHEMA, particles=each, seed=4)
        assert bool(fits(made.tokens).all()) and made.population is not None
        found = made.population.log_evidence.exp()
        assert abs(float(found.mean()) - evidence) < 5 * float(found.std()) / num**0.5, "unbiased"
        counts = torch.bincount(codes(made.tokens, V), minlength=V**L) / num
        distance[each] = total_variation(counts, law)
    assert distance[24] < 0.06 < distance[1], distance


@pytest.mark.parametrize("kind", ["left to right", "blocks"])
def test_models_that_see_what_comes_before_have_it_by_particles(kind: str) -> None:
    """The law of the text behind eos, against the chain rule along the order that sampling takes."""
    adapted = {"adaln": False, "attention": "block", "block": 1, "adapters": 4, "start": LETTERS.eos_id}
    net = small(Causal, std=0.1, **SIZES) if kind == "left to right" else small(DDiT, std=0.1, **SIZES, **adapted)
    model = Model(net, LETTERS)
    rows = torch.cat((torch.full((V**L, 1), LETTERS.eos_id), EVERY), 1)
    log_p = torch.zeros(V**L, dtype=torch.float64)
    for at in range(1, L + 1):
        seen = rows.clone()
        seen[:, at:] = V
        with torch.no_grad():
            answers = torch.cat([net(part)[:, at] for part in seen.split(500)]).double().log_softmax(-1)
        log_p += answers.gather(1, rows[:, at : at + 1]).squeeze(1)
    law, evidence = truth(log_p.exp())
    made = model.sample(300, length=L + 1, schema=SCHEMA, particles=24, seed=5)
    assert bool(fits(made.tokens[:, 1:]).all()) and made.population is not None
    found = made.population.log_evidence.exp()
    assert abs(float(found.mean()) - evidence) < 5 * float(found.std()) / 300**0.5
    counts = torch.bincount(codes(made.tokens[:, 1:], V), minlength=V**L)
    assert total_variation(counts / 300, law) < 0.1
    assert model.sample(2, length=L + 1, schema=SCHEMA).population.log_weights.shape == (2, 16)


def test_behind_a_prompt_and_in_blanks() -> None:
    model = oracle(random_joint(independent=False))
    made = model.sample(20, prompt="1]", length=L, schema=SCHEMA, seed=1)
    assert all(text.startswith("1]") and isinstance(json.loads(text[2:]), list) for text in made.text)
    assert set(model.infill("[__]", 20, schema=SCHEMA, seed=1).text) == {"[11]"}
    before = Model(small(Causal, std=0.3, **SIZES | {"length": 8}), LETTERS)
    assert set(before.infill("[_,_]", 3, schema=SCHEMA, seed=1).text) == {"[1,1]"}
    assert before.infill("[_,_]", 3, schema=SCHEMA, seed=1).population.log_weights.shape == (3, 32)


def test_what_cannot_be_is_refused() -> None:
    model = oracle(random_joint(independent=True))
    for name, options in {
        "schema": {"schema": {"type": "object", "properties": {"a": {"type": "null"}}}},
        "canvas": {"canvas": [[V] * L], "length": None},
        "stop": {"stop": True},
    }.items():
        with pytest.raises(OptionError) as refused:
            model.sample(1, **{"length": L, "schema": SCHEMA} | options)
        assert refused.value.option == name
    with pytest.raises(OptionError, match="cannot be combined with pattern"):
        model.sample(1, length=L, schema=SCHEMA, pattern="a")


def test_on_the_command_line(tmp_path, capsys) -> None:
    from tests.small_models import folder

    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"enum": [12, "ab"]}))
    model = str(folder(tmp_path / "m", "bytes"))
    assert main(["sample", model, "--json-schema", str(file), "--length", "8", "--number", "2", "--json"]) == 0
    for line in capsys.readouterr().out.splitlines():
        record = json.loads(line)
        assert json.loads(record["text"]) in (12, "ab") and record["log_evidence"] < 0 and record["particles"] == 1
    assert main(["infill", model, "1_", "--json-schema", str(file)]) == 0
    told = capsys.readouterr()
    assert told.out.strip() == "12" and "unconstrained, the model would have satisfied it" in told.err
    file.write_text("{")
    assert main(["sample", model, "--json-schema", str(file)]) == 2


@pytest.mark.slow
def test_a_network_that_learned_json_lines_often_satisfies_their_schema(tmp_path) -> None:
    """Half of its free texts would, of an untrained one hardly any; what is drawn has the values of its lines."""
    lines = [json.dumps({"age": age, "ok": ok}) for age in range(10, 30) for ok in (True, False)]
    letters = characters("".join(sorted(set("".join(lines)))), eos=True)
    rows = torch.tensor([[*letters.encode(line), *[letters.eos_id] * (26 - len(line))] for line in lines])
    schema = {"type": "object", "properties": {"age": {"type": "integer"}, "ok": {"type": "boolean"}}}
    schema["required"] = ["age", "ok"]
    sizes = {"layers": 2, "width": 64, "heads": 2, "batch": 32, "threads": 1, "preview": False, "tensorboard": False}
    options = {"learning_rate": 3e-3, "warmup": 10, "dropout": 0.0, "steps": 400, "validate_every": 400}
    trained = unmask.train(rows.repeat(20, 1), out=str(tmp_path / "run"), seed=1, **sizes, **options)
    learned = Model(trained.denoiser, letters, layout="rows")
    ids = letters.vocab_size
    fresh = Model(small(DDiT, **SIZES | {"vocab_size": ids, "mask_id": ids, "length": 26}), letters, layout="rows")
    found = {}
    for name, model in {"learned": learned, "fresh": fresh}.items():
        made = model.sample(40, length=26, schema=schema, particles=8, seed=2)
        assert all(set(json.loads(text)) == {"age", "ok"} for text in made.text)
        found[name] = made.population.evidence()
    assert found["learned"] > math.log(0.5) and found["fresh"] < -20, found
    ages = {json.loads(text)["age"] for text in learned.sample(40, length=26, schema=schema, particles=8, seed=2).text}
    assert ages <= set(range(10, 30)) and len(ages) > 8
