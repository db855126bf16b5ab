"""Invented numbers for every claim of every item: good ones, for which it must hold, and bad ones that make it fail."""

from reproduction.cells import COLUMNS, PAIRS, How
from reproduction.item import Table
from reproduction.items.after_the_fix import CACHE
from reproduction.items.first_hitting_precision import way
from reproduction.items.high_order import CORRECT, EXTRAPOLATE, FIRST, THIRD
from reproduction.items.masked_against_uniform import BOUND, JUDGED, MASKED, UNIFORM
from reproduction.items.masked_against_uniform import TOLD as UNIFORM_TOLD
from reproduction.items.prioritised_unmasking import COUNTED, KINDS
from reproduction.items.training_variants import COUNTS, FED, FROZEN, SAMPLED, TIME, TOLD, TWIN, WEIGHTED

L = 32


def cell(how, N, nats, entropy=3.0, subject="kjv", rows=float(L)):
    label = how if isinstance(how, str) else how.label
    return (subject, label, N, 4000, L, nats, 0.005, entropy, 0.002, 2.718**nats, 32.0, rows, 1.0)


def cells(*rows):
    return {"cells": Table(COLUMNS, rows)}


def seeds(*values):
    """Eight seeds that hardly differ."""
    return [(i, *(value + 0.0001 * (i % 3) for value in values)) for i in range(8)]


def beta_densities(good):
    off = 0.0 if good else 0.01
    moments = Table(("mode of alpha", "(L-n)/(L-1)"), ((0.5 + off, 0.5),))
    columns = ("L", "grid's step", "largest variance", "1/(4(L+2))", "furthest mode of t from n/L")
    yield {"moments": moments, "bounds": Table(columns, ((1024, 1e-3, 2e-4 + off, 2.4e-4, 5e-4 + off),))}


def sampling_time(good):
    columns = ("sampler", "N", "NFE", "draws of rows", "seconds")
    rows = [("published, float32", 256, 60, 256 * 64, 1.0), ("published, float32", 1024, 62, 1024 * 64, 4.0)]
    if not good:  # the calls grow with N, and the draws do not
        rows = [("published, float32", 256, 60, 64, 1.0), ("published, float32", 1024, 240, 64, 1.0)]
    rows += [("plan.ancestral", 1024, 60, 64 if good else 128, 1.0)]
    rows += [("plan.first_hitting", 1024, 64 if good else 60, 64, 1.0)]
    seconds = Table(("network", *columns), tuple(("mine", *row) for row in rows))
    yield {"seconds": seconds, "sizes": Table(("network", "V", "L"), (("mine", 50, 64),))}


def cached_calls(good):
    calls, real = (1.0, 120.0) if good else (0.7, 24.0)
    rows = ((1, 64, 64.0, 64.0 * calls, 0.01), (2, 100_000, 2030.0, 2030.0 * calls if good else 1000.0, 0.2))
    published = ((24, 8, 200, 100, 120.0, real, 0.5),)
    yield {
        "calls": Table(("B", "N", "formula", "simulated", "standard error"), rows),
        "the published sampler": Table(("L", "B", "N", "runs", "formula", "counted", "standard error"), published),
        "sizes": Table(("L", "runs"), ((1024, 200),)),
    }


def published_steps(good):
    fall, less = (1.0, 0.2) if good else (0.0, 0.0)
    drawn, law, score = How("coupled", "float32"), How("law", "float32"), How("sedd law", "float32")
    yield cells(
        cell(How("parallel"), L, 5.0),
        cell(How("left to right"), None, 5.0),
        cell(drawn, 100, 5.0),
        cell(drawn, 50_000, 5.0 - fall, 3.0 - less),
        cell(law, 100, 5.0),
        cell(law, 50_000, 4.0, 2.8),  # the simulation shows the error whatever real draws do
        cell(law, 1_000_000, 5.0 - fall),
        cell(score, 100, 5.0),
        cell(score, 50_000, 5.0 - fall),
    )


def largest_gumbel(good):
    off, steps = (0.0, 1.0) if good else (0.01, 0.5)
    columns = ("type", "M", "M of that float", "the paper's M")
    rows = (("float16", 8.0, 8.0, None), ("float32", str(16.6355 + off), "16.6355", 16.6355))
    drawn = Table(("numbers of torch.rand", "the largest", "steps of 2^-24 below 1"), ((10**9, 1 - 2**-24, steps),))
    yield {"largest Gumbels": Table(columns, rows), "largest drawn": drawn}


def precisions(good):
    def of(single, double, cut):
        by = {"float32": single, "float64": double, "float64-truncated": cut}
        drawn = [cell(How("coupled", bits), 10_000, nats, 3.0 - (5 - nats) / 5) for bits, nats in by.items()]
        return cells(cell(How("truth"), None, 5.0), *drawn)

    yield of(4.0, 5.0, 3.9) if good else of(5.0, 5.0, 5.0)  # float32 does nothing
    if not good:
        yield of(4.0, 4.0, 5.0)  # float64 shows the error, and truncation does not


def after_the_fix(good):
    low = 0.0 if good else 0.8

    def of(*more):
        published = [
            cell(how, N, 5.0 - low * (N > 100), 3.0 - low / 4)
            for how in (How("coupled"), How("sedd"))
            for N in (100, 10_000)
        ]
        cache = ("kjv", 128, 2, 64, 0 if good else 3, 30.0 if good else 60.0, 128.0 if good else 60.0, 2.0)
        found = cells(*published, cell(How("coupled", "float32"), 10_000, 4.0), *more)
        return {**found, "the cache": Table(CACHE, (cache,))}

    trained = cell(How("parallel"), L, 5.0)
    yield of(trained, cell("left to right", None, 4.0 if good else 5.0))
    yield of(cell(How("parallel"), L, 5.0 + low), cell(How("truth"), None, 5.0), cell("left to right", None, 5.0))


def temperature(good):
    curve = [
        cell(How("parallel", predictor="correct", temperature=T), L, 4 + 5 * (T - 0.8), 2.8 + (T - 0.8))
        for T in (0.8, 0.9, 1.0)
    ]
    if not good:  # colder is neither lower in perplexity nor in entropy
        curve = [
            cell(How("parallel", predictor="correct", temperature=T), L, 4.5 - T / 2, 3.2 - T / 4)
            for T in (0.8, 0.9, 1.0)
        ]
    middle = curve[1]
    fault = cell(How("law", "float32"), 10_000, middle[5], middle[7] - (0.1 if good else -0.1))
    ahead = cell("left to right", None, middle[5] - (1.0 if good else -1.0), middle[7])
    yield cells(*curve, fault, ahead)


def known_truth(good):
    lower = -1.0 if good else 1.0  # than what it is compared with
    exact, left = cell(How("parallel"), L, 4.0), cell(How("left to right"), None, 4.0 + lower, 3.0)
    yield cells(
        exact,
        cell(How("parallel"), L // 2, 4.0 - lower),
        cell(How("ancestral"), 4096, 4.0 if good else 5.0),
        cell(How("parallel", temperature=0.8), L, 4.0 + lower, 3.0 + lower),
        left,
        cell(How("left to right", temperature=0.8), None, left[5] + lower, 3.0 + lower),
        cell(How("truth"), None, left[5] if good else left[5] - 1),
    )


def training_variants(good):
    told = {
        TOLD: 2.08,
        TIME: 2.10,
        "over counts, told the ratio": 2.10,
        COUNTS: 2.12,
        WEIGHTED: 2.2,
        FED: 2.1,
        TWIN: 1.4,
    }
    if not good:
        told = {
            TOLD: 2.3,
            TIME: 2.1,
            "over counts, told the ratio": 2.3,
            COUNTS: 2.0,
            WEIGHTED: 1.9,
            FED: 2.1,
            TWIN: 2.1,
        }
    noise = {name: 0.1 if name != FED or not good else 0.3 for name in told}
    columns = ("variant", "seed", "validation, nats per character", "noise of the training loss", "largest gradient")
    bounds = [(name, *row) for name, value in told.items() for row in seeds(value, noise[name], 1.0)]
    samples = dict(zip(SAMPLED, (2.0, 2.1, 2.0, 2.0) if good else (2.1, 2.0, 2.2, 2.0), strict=True))
    frozen = dict(zip(FROZEN, (0.14, 0.11) if good else (0.11, 0.14), strict=True))
    rows = [
        (name, i, value * (1 + 0.001 * (i % 2 if name in (SAMPLED[0], SAMPLED[2]) else 0)))
        for name, value in samples.items()
        for i in range(8)
    ]
    yield {
        "bounds": Table(columns, tuple(_varied(bounds))),
        "samples": Table(("sampler", "seed", "nats per character by the twin"), tuple(rows)),
        "noise at frozen weights": Table(
            ("times", "seed", "median absolute deviation of a batch's loss"),
            tuple(
                (name, i, value + 0.0005 * (i % 3) * (name == FROZEN[0]))
                for name, value in frozen.items()
                for i in range(8)
            ),
        ),
        "sizes": Table(("layers", "width", "steps", "batch", "length"), ((2, 64, 200, 32, 64),)),
    }


def _varied(bounds):
    """So that differences of variants have a spread too."""
    order = {name: k for k, name in enumerate(dict.fromkeys(row[0] for row in bounds))}
    return [
        (
            name,
            i,
            bound + 0.0001 * ((i * (order[name] + 2)) % 11),
            noise + 0.0001 * ((i * (order[name] + 1)) % 3),
            grad + 0.01 * ((i + order[name]) % 3),
        )
        for name, i, bound, noise, grad in bounds
    ]


def variance_reduction(good):
    variance = {"independent": 1.0, "VDM's comb": 0.5, "stratified (MDLM)": 0.5, "importance sampling": 0.6}
    if not good:
        variance |= {"stratified (MDLM)": 1.0, "importance sampling": 2.5}
    loss = {name: 2.0 if good or "importance" not in name else 2.2 for name in variance}
    rows = [
        (name, i, loss[name] * (1 + 0.001 * ((i * (k + 1)) % 7)), value * (1 + 0.01 * ((i * (k + 2)) % 5)))
        for k, (name, value) in enumerate(variance.items())
        for i in range(8)
    ]
    columns = ("counts n", "seed", "mean loss, nats per token", "variance of a batch's loss")
    yield {"variance": Table(columns, tuple(rows)), "sizes": Table(("length", "batch", "batches"), ((64, 64, 150),))}


def pair(a, b, N, nats, entropy=0.0, n=1000):
    return ("kjv", a.label, b.label, N, n, nats, 0.001, entropy, 0.0005)


def high_order(good):
    sign, rows = 1 if good else -1, []
    for N in (4, 16):
        few = N <= L / 8
        rows += [
            pair(EXTRAPOLATE, FIRST, N, 0.1 * sign, -0.1 * sign),
            pair(CORRECT, FIRST, N, 0.2 * sign, -0.1 * sign),
            pair(EXTRAPOLATE, CORRECT, N, (0.1 if few else -0.1) * sign),
            pair(THIRD, EXTRAPOLATE, N, -0.1 * sign),
        ]
    yield {**cells(cell(FIRST, 4, 5.0)), "pairs": Table(PAIRS, tuple(rows))}
    if not good:  # a lower perplexity with a higher entropy
        wrong = tuple(pair(how, FIRST, N, 0.1, 0.1) for N in (4, 16) for how in (EXTRAPOLATE, CORRECT))
        yield {**cells(cell(FIRST, 4, 5.0)), "pairs": Table(PAIRS, wrong)}


def first_hitting_precision(good):
    nats, rows = (0.01, 0.01) if good else (0.3, 0.0), []
    for order in ("first order", "second order"):
        for N in (4, 32):
            a, b = (way(order == "second order", bits, N, L) for bits in ("float32", "float64"))
            rows.append((order, *pair(a, b, N, *nats)))
    rows.append(("left to right", *pair(How("left to right"), How("left to right"), None, *nats)))
    yield {**cells(cell(FIRST, 4, 5.0)), "pairs": Table(("order", *PAIRS), tuple(rows))}


def prioritised_unmasking(good):
    rows = []
    for kind in KINDS:
        for N, parts in ((1000, (0.98, 0.9, 0.8)), (10_000, (0.95, 0.6, 0.3))):
            for third, law in enumerate(parts if kind != "float64" else (1.0, 1.0, 1.0)):
                found = (
                    law if good else 1.0 if kind == "float32" else 0.5
                )  # float32 without the error, the others with it
                rows.append((kind, N, third, 3.0, 16, 10**6, 60_000, found, law))
    sizes = Table(("subject", "positions", "V"), (("oracle", 48, 50_257),))
    yield {"one step, counted": Table(COUNTED, tuple(rows)), "sizes": sizes}


def efficiency(good):
    here = Table(("categorical", "t1 : L|V|t2"), (("race, float32", 0.64),))
    sizes = Table(("network", "L", "V"), (("small", 1024, 50_257),))

    def of(*values):
        return {
            "worked cases": Table(("speed-up",), tuple((v,) for v in values)),
            "measured here": here,
            "sizes": sizes,
        }

    yield of(17.0, 5.0, 1.07) if good else of(12.0, 9.0, 2.0)
    if good:
        yield of(20.0, 5.0, 1.07)


def generated_text(good):
    yield cells(cell(How("coupled", "float32"), 50_000, 4.0, 2.8 if good else 3.0), cell(How("parallel"), L, 5.0))


def propositions(good):
    from reproduction.items.propositions import CHECKS

    error = 1e-15 if good else 1.0
    rows = tuple((name, "two sides", error, 1e-12) for name in CHECKS)
    yield {"checks": Table(("statement", "what was compared", "error", "allowed"), rows)}


def masked_against_uniform(good):
    bounds = (
        {MASKED: 0.10, UNIFORM_TOLD: 0.15, UNIFORM: 0.20} if good else {MASKED: 0.15, UNIFORM_TOLD: 0.1, UNIFORM: 0.1}
    )
    judged = (
        {MASKED: 0.20, UNIFORM_TOLD: 0.21, UNIFORM: 0.30} if good else {MASKED: 0.20, UNIFORM_TOLD: 0.4, UNIFORM: 0.3}
    )
    rows = [
        (name, i, bounds[name] + 0.0001 * ((i * (k + 2)) % 5), judged[name] + 0.0001 * ((i * (k + 1)) % 5), 16.0)
        for k, name in enumerate(bounds)
        for i in range(6)
    ]
    sizes = Table(
        ("ids", "length", "layers", "width", "heads", "batch", "steps", "rows"), ((12, 16, 2, 64, 2, 64, 1200, 512),)
    )
    columns = ("variant", "seed", BOUND, JUDGED, "calls for each sequence")
    yield {"results": Table(columns, tuple(rows)), "sizes": sizes}
