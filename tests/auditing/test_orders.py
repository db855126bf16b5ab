"""The audit of orders convicts what goes left and what loses entropy, and nothing else. False alarms: 1e-6."""

import json

import pytest
import torch

from unmask.auditing.orders import ONE_TOKEN, ROWS, _temperature, audit_order, chosen_by, known_joint
from unmask.cli import main
from unmask.samplers import decoding


def by_confidence(logits, count):
    """Tempered confidence, then a stable sort, as it is copied from repository to repository."""
    return logits.softmax(-1).amax(-1).argsort(descending=True, stable=True)[:count]


def at_random(logits, count):
    return torch.randperm(len(logits))[:count]


def leftmost(logits, count):
    return torch.arange(count)


def test_a_stable_sort_goes_left_where_confidences_tie():
    report = audit_order(by_confidence)
    found = {(one.rows, one.dtype): one for one in report.choices}
    assert report.leftmost and not report.exact and "from the left" in report.verdict
    assert found[ONE_TOKEN, "float64"].leftness == 1 and found[ONE_TOKEN, "float64"].moved == 1
    assert found["ordinary", "float64"].p_value > 1e-6 and found["ordinary", "float64"].moved == 0
    assert found["sharp", "float32"].leftness > found["sharp", "float64"].leftness + 0.1, "float32 ties more often"
    assert report.disagreement > 0.1


def test_left_to_right_and_random_order_are_told_apart():
    assert audit_order(leftmost).leftmost and not audit_order(leftmost).biased, (
        "the chain rule in a fixed order is exact"
    )
    assert audit_order(at_random).exact


@pytest.mark.parametrize("order", [decoding.margin(), decoding.entropy(), decoding.random_order(), decoding.dream()])
def test_our_orders_break_ties_uniformly_and_the_authors_rule_does_not(order):
    report = audit_order(order, trials=150)
    assert not report.leftmost, report
    if order != decoding.random_order():
        assert audit_order(decoding.leftmost(order), trials=150).leftmost


def test_choosing_by_the_drawn_token_loses_entropy():
    """And choosing by the network's prediction alone does not: the chain rule holds in such an order."""
    assert audit_order(decoding.low_confidence(), trials=50).biased
    for order in (decoding.margin(), decoding.entropy()):
        report = audit_order(order, trials=50)
        assert not report.biased and abs(report.temperature - 1) < 5 * report.temperature_error
    assert audit_order(decoding.low_confidence(), trials=50).temperature < 0.95


def test_the_leftness_of_a_uniform_choice_has_its_law():
    """The variance of the statistic over many audits of a random order is 1 in units of its error."""
    rows = ROWS["ordinary"](4000, torch.Generator().manual_seed(1))
    chosen = chosen_by(at_random, rows, 3)
    length, k = 32, 8
    z = (k * (length - 1) / 2 - (chosen * torch.arange(length)).sum(1)) / (k * (length - k) * (length + 1) / 12) ** 0.5
    assert abs(float(z.mean())) < 5 / 4000**0.5 and abs(float(z.var()) - 1) < 5 * (2 / 4000) ** 0.5


def test_the_effective_temperature_of_a_tempered_joint_is_its_temperature():
    log_p = known_joint().log_likelihood(torch.cartesian_prod(*[torch.arange(3)] * 6))
    for temperature in (0.5, 1.0, 2.0):
        tempered = (log_p / temperature).softmax(0)
        assert _temperature(log_p, float(-(tempered * log_p).sum())) == pytest.approx(temperature, rel=1e-6)


def test_an_order_that_returns_its_tokens_is_measured_with_them():
    """The likeliest of the tokens drawn, by a function: as much entropy is lost as by our order, not none."""

    def drawn(logits, count):
        tokens = torch.multinomial(logits.softmax(-1), 1)
        return logits.softmax(-1).gather(1, tokens).squeeze(1).argsort(descending=True)[:count], tokens.squeeze(1)

    report, ours = audit_order(drawn, trials=20), audit_order(decoding.low_confidence(), trials=20)
    assert report.biased and abs(report.lost - ours.lost) < 5 * (report.lost_error**2 + ours.lost_error**2) ** 0.5
    assert not audit_order(lambda logits, count: drawn(logits, count)[0], trials=20).biased


def test_on_the_command_line(capsys):
    assert main(["audit", "entropy", "--order"]) == 0
    assert "no fault was found" in capsys.readouterr().out
    assert main(["audit", "tests.auditing.test_orders:by_confidence", "--order", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["leftmost"] and len(told["choices"]) == 6
    assert main(["audit", "nothing", "--order"]) == 2
    with pytest.raises(ValueError, match="must return positions"):
        audit_order(lambda logits, count: [99])
