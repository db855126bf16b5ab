"""``unmask audit``: the command line. 0 for exact, 1 for faulty, 2 if the subject could not be audited."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unmask.auditing import AuditReport, audit
from unmask.auditing.normalisation import audit_normalisation
from unmask.auditing.orders import audit_order
from unmask.auditing.subjects import BUILTIN
from unmask.cli.command import Command
from unmask.cli.options import guarded, imported
from unmask.names import DECODING, decoding

HELP = "package.module:function, from probabilities or logits [rows, classes] to ids; or a built-in subject; or 'list'"


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Test whether a categorical sampler has the right distribution. Exit code 1 means that it does not."""

    subject: str
    takes: str | None = None
    """The input of the function: probabilities or logits. It is detected by default."""
    library: str | None = None
    """The arrays that the function takes: torch, numpy or jax. It is detected by default."""
    budget: float = 3e9
    """Random numbers that one test may use. 3e9 detects float32 (about half a minute); 1e8 detects 17 bits."""
    vocab: int = 50_257
    """The largest number of classes tested."""
    length: int = 1024
    """The length of the sampler whose behaviour is predicted, in tokens."""
    steps: int = 1000
    """The number of steps of that sampler."""
    seed: int = 0
    """The seed of all random numbers."""
    normalisation: bool = False
    """Instead of a sampler, audit a function from logits to probabilities, or a model, for sums that are not one."""
    order: bool = False
    """Instead of a sampler, audit a decoding order: one of ours by name, or a function from logits [positions, classes]
    and a count to the positions that are unmasked first."""
    json: bool = False
    """Print the report as JSON."""


COMMAND = Command(
    "audit",
    AuditOptions,
    {"subject": HELP},
    ("unmask audit torch_multinomial", "unmask audit my_package.sampling:draw --budget 1e8"),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask audit``: 0 for exact, 1 for faulty, 2 if the subject could not be audited."""
    chosen = COMMAND.parsed(arguments)

    def audited() -> int:
        if chosen.subject == "list":
            for name, known in BUILTIN.items():
                print(f"{name:<30} {known.what}{'' if known.available else f' (needs {known.library})'}")
            return 0
        exact, shown = run(chosen)
        print(shown)
        return 0 if exact else 1

    return guarded("audit", audited)


def run(chosen: AuditOptions) -> tuple[bool, str]:
    """The verdict, and what to print."""
    if chosen.order:
        return _order(chosen)
    draw: Any = (
        chosen.subject
        if chosen.subject in BUILTIN
        else imported(chosen.subject, "a built-in subject (unmask audit list)")
    )
    if chosen.normalisation:
        if isinstance(draw, str):
            raise ValueError(f"--normalisation audits a function or a model, package.module:function, not {draw!r}")
        normalised = audit_normalisation(draw, vocab=chosen.vocab, seed=chosen.seed)
        return normalised.exact, json.dumps(asdict(normalised)) if chosen.json else normalised.verdict
    report = audit(
        draw,
        takes=chosen.takes,
        library=chosen.library,
        budget=chosen.budget,
        vocab=chosen.vocab,
        length=chosen.length,
        steps=chosen.steps,
        seed=chosen.seed,
        name=chosen.subject,
    )
    return report.exact, json.dumps(finite(asdict(report))) if chosen.json else text(report, chosen)


def _order(chosen: AuditOptions) -> tuple[bool, str]:
    """The verdict on a decoding order, and what to print."""
    ours = chosen.subject in DECODING
    subject = decoding(chosen.subject).get("sampler") if ours else imported(chosen.subject, "an order of --decoding")
    if subject is None:
        raise ValueError(f"{chosen.subject} does not depend on the network: there is nothing to audit")
    report = audit_order(subject, seed=chosen.seed, name=chosen.subject)
    if chosen.json:
        return report.exact, json.dumps(finite(asdict(report) | {"verdict": report.verdict, "exact": report.exact}))
    lines = [str(report), "", f"{'rows':<16}{'logits':<9}{'leftness':>10}{'p':>10}{'by position':>16}"]
    for one in report.choices:
        leftness = f"{one.leftness:>10.3f}{one.p_value:>10.1e}"
        lines.append(f"{one.rows:<16}{one.dtype:<9}{leftness}{one.moved:>9.3f} +- {one.moved_error:.3f}")
    lines += [
        "",
        f"float32 and float64 choose differently: {report.disagreement:.3f} +- {report.disagreement_error:.3f}",
        f"entropy lost against first-hitting, nats: {report.lost:.3f} +- {report.lost_error:.3f}",
        f"effective temperature: {report.temperature:.3f} +- {report.temperature_error:.3f}",
        "",
        "leftness: 0 for a uniform choice among exchangeable rows, 1 for the leftmost; by position: the share of",
        "trials in which reversing the rows does not reverse the choice: ties, or noise that belongs to the position.",
    ]
    return report.exact, "\n".join(lines)


def text(report: AuditReport, chosen: AuditOptions) -> str:
    """The verdict in the first line, then its evidence."""
    lines = [
        str(report),
        "",
        f"{'test':<18}{'rows':>10}{'classes':>9}{'losses':>8}{'exact':>8}{'distance':>11}{'p':>10}"
        f"{'closed form':>13}{'p':>10}",
    ]
    for probe in report.probes:
        count = probe.count
        losses = f"{count.left:>8}{count.rows * count.r:>8.1f}" if count else f"{'':>16}"
        both = (probe.closed_form_distance, probe.closed_form_p_value)
        closed = "" if math.isnan(both[0]) else f"{both[0]:>13.2e}{both[1]:>10.1e}"
        lines.append(
            f"{probe.name:<18}{probe.rows:>10,}{probe.classes:>9,}{losses}"
            f"{probe.distance:>11.2e}{probe.p_value:>10.1e}{closed}"
        )
    lines += [
        "",
        "losses: of the sure class, and how many are expected of an exact sampler; distance: total variation to the",
        "truth, and to the truncated closed form (Prop. 5.2); p allows for the number of tests, up to 1e-6 is a fault.",
        f"Temperature that fits Zipf's law best: {report.temperature:.3f} +- {report.temperature_error:.3f}",
    ]
    if report.consequences:
        lines += [
            "",
            f"What M = {report.maximum:.2f} does to {chosen.steps:,} coupled steps, {chosen.vocab:,} tokens:",
            f"{'entropy, nats':>14}{'unmasking':>12}{'temperature':>13}{f'of {chosen.length:,} at half-time':>24}",
        ]
        rows = [(f"{c.entropy:.1f}", c.unmasking, c.temperature, c.at_half) for c in report.consequences]
        for entropy, unmasking, temperature, half in [*rows, ("exact", 1.0, 1.0, chosen.length / 2)]:
            lines.append(f"{entropy:>14}{unmasking:>12.3f}{temperature:>13.3f}{half:>24.0f}")
    lines += ["", f"{report.numbers:.2g} random numbers, {report.seconds:.0f} s"]
    return "\n".join(lines)


def finite(value: Any) -> Any:
    """JSON has no infinity: None instead."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
