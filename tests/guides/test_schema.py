"""JSON Schemas as regular expressions: whatever they match validates, and what cannot be enforced is refused."""

import json
import random

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.small_models import TOKENIZERS, network
from unmask import Model
from unmask.errors import OptionError
from unmask.guides.characters import characters
from unmask.guides.patterns import Bounds, of_text
from unmask.guides.schema import ANY_OBJECT, expression

pytest.importorskip("outlines_core", reason="JSON Schemas are an extra: pip install 'unmask[schema]'")

MODEL = Model(network(TOKENIZERS["bytes"], length=24), TOKENIZERS["bytes"])
NAMES = st.sampled_from(["a", "b c", "é_1", "x-y"])
SIZES = st.integers(0, 3)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-20, 20), st.text('ab"\\.*[é', max_size=3))


def sized(kind, least, most, **more):
    low, high = sorted((least, most))
    return {"type": kind, f"min{'Length' if kind == 'string' else 'Items'}": low} | (
        {f"max{'Length' if kind == 'string' else 'Items'}": high} | more
    )


def objects(parts):
    def made(properties, chosen):
        return {"type": "object", "properties": properties, "required": [n for n in properties if n in chosen]}

    return st.builds(made, st.dictionaries(NAMES, parts, min_size=1, max_size=3), st.sets(NAMES))


LEAVES = st.one_of(
    st.sampled_from(["integer", "number", "boolean", "null"]).map(lambda kind: {"type": kind}),
    st.builds(sized, st.just("string"), SIZES, SIZES),
    st.sampled_from(["date", "uuid"]).map(lambda form: {"type": "string", "format": form}),
    st.sampled_from(["a+b", "^x[0-9]{2}$", "(é|b)*"]).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value}),
    st.just({"type": ["string", "null"], "maxLength": 2}),
    st.just({"$ref": "#/$defs/two"}),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.builds(lambda items, a, b: sized("array", a, b, items=items), parts, SIZES, SIZES),
        st.lists(parts, min_size=1, max_size=3).map(lambda first: {"type": "array", "prefixItems": first}),
        st.lists(parts, min_size=1, max_size=2).map(lambda any_of: {"anyOf": any_of}),
        objects(parts),
    ),
    max_leaves=4,
)


def texts(schema, count, seed):
    """Random texts that the automaton accepts: walks that stay where an accepting state can be reached."""
    initial, finals, table = characters(expression(schema))
    live = set(finals)
    while True:
        more = {state for state, after in table.items() if live & set(after.values())} - live
        if not more:
            break
        live |= more
    source, found = random.Random(seed), []
    for _ in range(count):
        state, text = initial, ""
        for _ in range(400):
            moves = [(symbol, to) for symbol, to in table[state].items() if to in live]
            if state in finals and (not moves or source.random() < 0.3):
                break
            symbol, state = source.choice(moves)
            text += "~" if symbol is None else symbol
        found += [text] if state in finals else []
    return found


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 100))
def test_every_text_parses_and_validates(schema, seed):
    whole = schema | {"$defs": {"two": {"enum": [2, "two"]}}}
    for text in texts(whole, 5, seed):
        jsonschema.validate(json.loads(text), whole, cls=jsonschema.Draft202012Validator)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 100))
def test_every_answer_of_a_model_parses_and_validates(schema, seed):
    """A masked network over bytes that has learned nothing: two answers for each schema that 24 bytes can satisfy."""
    whole = schema | {"$defs": {"two": {"enum": [2, "two"]}}}
    try:
        texts = MODEL.sample(2, max_tokens=24, schema=whole, seed=seed).text
    except OptionError as refused:
        assert "no text of" in str(refused) or "states" in str(refused)
        return
    for text in texts:
        jsonschema.validate(json.loads(text), whole, cls=jsonschema.Draft202012Validator)


def test_without_the_checks_an_answer_could_fail_its_schema():
    """What outlines-core makes of a schema that is refused here: the reason for the checks."""
    core = pytest.importorskip("outlines_core.json_schema")
    schema = {"type": "integer", "minimum": 3}
    with pytest.raises(OptionError, match="minimum"):
        expression(schema)
    initial, finals, table = characters(core.build_regex_from_schema(json.dumps(schema)))
    assert table[initial]["1"] in finals, "it takes 1"


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ([], "a JSON Schema is an object"),
        ({}, "allows every value: say its type"),
        ({"type": "integer", "minimum": 3}, "the schema uses minimum, which cannot be enforced"),
        ({"type": "object", "properties": {"a": True}}, "a of the schema allows every value"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "a recursive one is not taken"),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}, "is recursive"),
        ({"$ref": "#/$defs/n"}, "which the schema does not have"),
        ({"type": "string", "pattern": ".*"}, "allows quotes, backslashes"),
        ({"type": "string", "pattern": "(a"}, "is not understood"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "cannot be enforced together"),
        ({"type": "string", "format": "email"}, "has the format 'email'"),
        ({"type": "string", "format": "time"}, "has the format 'time'"),
        ({"type": "object", "required": ["a"]}, "requires 'a', which is not among its properties"),
        ({"type": "object", "properties": {'a"': {"type": "null"}}}, "names may have letters"),
        ({"type": "array"}, "add items"),
        ({"allOf": [{"type": "null"}, {"type": "null"}]}, "write them as one"),
        ({"oneOf": [{"type": "null"}]}, "uses oneOf"),
        ({"type": "string", "anyOf": []}, "uses type"),
        ({"enum": [1], "type": "string"}, "not of the type"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength above maxLength"),
        ({"type": "thing"}, "has the type 'thing'"),
        ({"enum": ["a" * 30_000]}, "the limit is 20,000"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(schema, says):
    with pytest.raises(OptionError, match=says):
        expression(schema)


def test_an_automaton_is_bounded_in_size_and_time():
    pieces, schema = [b"a"], {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": 4}
    with pytest.raises(ValueError, match=r"states; the limit is 10"):
        of_text(expression({"type": "string", "maxLength": 40}), pieces, bounds=Bounds(30.0, 10), what="schema")
    with pytest.raises(ValueError, match=r"takes more than 0.2 s to build"):
        of_text(expression(schema), pieces, bounds=Bounds(0.2, 10_000), what="schema")


@pytest.mark.slow
def test_any_object_has_a_few_hundred_states():
    assert len(characters(expression(ANY_OBJECT))[2]) < 256
    for text in texts(ANY_OBJECT, 20, 1):
        assert isinstance(json.loads(text), dict)
