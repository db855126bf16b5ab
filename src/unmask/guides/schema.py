"""JSON Schema as a regular expression, of which ``guides.automaton`` makes an automaton over token ids.

outlines-core translates the schema. It ignores keywords that it does not know, and an answer could then fail the
schema. So a schema is checked first, and what its expression would not hold is refused by name. Every text of the
expression is JSON that satisfies the schema; not every such JSON is a text of it: properties come in the order of the
schema, none is added, and there is at most one space between tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from unmask.errors import OptionError
from unmask.extras import needed

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""Every JSON object whose values are nested at most twice."""

MOST_CHARACTERS = 20_000  # of the regular expression
BEFORE, AFTER = r"[ \n]?", r"[ \n]*"  # white space around JSON; behind it, it fills a canvas without an end

NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
NOTES |= {"$defs", "definitions", "$id"}
KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
    "integer": set[str](),
    "number": set[str](),
    "boolean": set[str](),
    "null": set[str](),
}
FORMATS = ("date", "uuid")  # what outlines-core has for times is not JSON
ONE_OF = ("enum", "const", "anyOf", "allOf", "$ref", "type")  # what a schema is, in the order it is looked for
KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def expression(schema: Mapping[str, Any]) -> str:
    """The regular expression of a schema's texts. OptionError for a schema that it cannot hold."""
    if not isinstance(schema, Mapping):
        raise OptionError("schema", f"a JSON Schema is an object, got {type(schema).__name__}")
    _check(schema, schema, "the schema", ())
    core = needed("outlines_core.json_schema", "a JSON Schema needs the outlines-core package", "schema")
    try:
        pattern = str(core.build_regex_from_schema(json.dumps(schema)))
    except (ValueError, TypeError) as error:
        raise OptionError("schema", f"the schema is not understood: {_first_line(error)}") from error
    if len(pattern) > MOST_CHARACTERS:
        says = f"the schema is a regular expression of {len(pattern):,} characters; the limit is {MOST_CHARACTERS:,}"
        raise OptionError("schema", f"{says}: make it smaller")
    return f"{BEFORE}({pattern}){AFTER}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _refuse(where: str, why: str) -> OptionError:
    return OptionError("schema", f"{where} {why}")


def _check(schema: Any, root: Mapping[str, Any], where: str, refs: tuple[str, ...]) -> None:
    """Refuse what the regular expression would not hold. refs: the references that led here."""
    if not isinstance(schema, Mapping):
        raise _refuse(where, "allows every value: say its type")
    what = next((name for name in ONE_OF if name in schema), None)
    if what is None:
        known = set[str]()
    elif what == "type":
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not kinds or not all(isinstance(kind, str) and kind in KEYWORDS for kind in kinds):
            raise _refuse(where, f"has the type {schema['type']!r}: allowed are {', '.join(KEYWORDS)}")
        known = {"type"}.union(*(KEYWORDS[kind] for kind in kinds))
    else:
        known = {what} | ({"type"} if what in ("enum", "const") else set())
    if strange := sorted(set(map(str, schema)) - known - NOTES):
        raise _refuse(where, f"uses {strange[0]}, which cannot be enforced here: leave it out")
    if what is None:
        raise _refuse(where, "allows every value: say its type")
    CHECKS[what](schema, root, where, refs)


def _check_values(schema: Mapping[str, Any], root: Mapping[str, Any], where: str, refs: tuple[str, ...]) -> None:
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if not isinstance(values, list) or not values:
        raise _refuse(where, "has an enum without values")
    kinds = schema.get("type", list(KINDS))
    kinds = kinds if isinstance(kinds, list) else [kinds]
    for value in values:
        if not any(isinstance(value, KINDS.get(kind, ())) for kind in kinds) or (
            isinstance(value, bool) and "boolean" not in kinds
        ):
            raise _refuse(where, f"allows {value!r}, which is not of the type {schema['type']!r}")
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            raise _refuse(where, f"allows {value!r}, which JSON does not have")


def _check_all(schema: Mapping[str, Any], root: Mapping[str, Any], where: str, refs: tuple[str, ...]) -> None:
    what = "anyOf" if "anyOf" in schema else "allOf"
    parts = schema[what]
    if not isinstance(parts, list) or not parts:
        raise _refuse(where, f"has an empty {what}")
    if what == "allOf" and len(parts) > 1:
        raise _refuse(where, "uses allOf with several schemas, which cannot be enforced here: write them as one")
    for i, part in enumerate(parts):
        _check(part, root, f"{what}[{i}] of {where}", refs)


def _check_reference(schema: Mapping[str, Any], root: Mapping[str, Any], where: str, refs: tuple[str, ...]) -> None:
    name = schema["$ref"]
    if not isinstance(name, str) or not name.startswith("#/"):
        raise _refuse(where, f"refers to {name!r}: a reference begins with #/ and a recursive one is not taken")
    if name in refs:
        raise _refuse(where, f"is recursive through {name}: write out as many levels as you need")
    found: Any = root
    for part in name[2:].split("/"):
        if not isinstance(found, Mapping) or part not in found:
            raise _refuse(where, f"refers to {name!r}, which the schema does not have")
        found = found[part]
    _check(found, root, name, (*refs, name))


def _check_type(schema: Mapping[str, Any], root: Mapping[str, Any], where: str, refs: tuple[str, ...]) -> None:
    for name in ("minLength", "maxLength", "minItems", "maxItems"):
        value = schema.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _refuse(where, f"has {name} {value!r}: it must be a whole number of at least 0")
    for least, most in (("minLength", "maxLength"), ("minItems", "maxItems")):
        if schema.get(least, 0) > schema.get(most, schema.get(least, 0)):
            raise _refuse(where, f"has {least} above {most}")
    _check_string(schema, where)
    kinds = schema["type"]
    if "array" in (kinds if isinstance(kinds, list) else [kinds]):
        _check_array(schema, root, where, refs)
    _check_object(schema, root, where, refs)


def _check_string(schema: Mapping[str, Any], where: str) -> None:
    if (given := schema.get("format")) is not None and given not in FORMATS:
        raise _refuse(where, f"has the format {given!r}: allowed are {', '.join(FORMATS)}")
    limits = [name for name in ("pattern", "format", "minLength", "maxLength") if name in schema]
    if ("pattern" in limits or "format" in limits) and len(limits) > 1:
        raise _refuse(where, f"has {limits[0]} and {limits[1]}, which cannot be enforced together: leave one out")
    if "pattern" in limits:
        _check_pattern(schema["pattern"], where)


def _check_pattern(pattern: Any, where: str) -> None:
    """A pattern must not write characters that JSON escapes: it would break the string."""
    interegular = needed("interegular", "a pattern in a schema needs the interegular package", "regex")
    try:
        machine = interegular.parse_pattern(re.sub(r"^\^|(?<!\\)\$$", "", pattern)).to_fsm()
    except Exception as error:  # a third-party parser may fail in any way
        raise _refuse(where, f"has a pattern that is not understood: {pattern!r}") from error
    escaped = interegular.parse_pattern(r'(.|\n)*["\\\x00-\x1f](.|\n)*').to_fsm()
    if not (machine & escaped).empty():
        raise _refuse(where, f"has the pattern {pattern!r}, which allows quotes, backslashes or control characters")


def _check_array(schema: Mapping[str, Any], root: Mapping[str, Any], where: str, refs: tuple[str, ...]) -> None:
    first = schema.get("prefixItems")
    if first is not None:
        if not isinstance(first, list) or not first or {"minItems", "maxItems"} & set(schema):
            raise _refuse(where, "has prefixItems, which must be a list without minItems and maxItems")
        if schema.get("items", False) is not False:
            raise _refuse(where, "has prefixItems and items: say items false")
        for i, item in enumerate(first):
            _check(item, root, f"prefixItems[{i}] of {where}", refs)
    elif "items" not in schema:
        raise _refuse(where, "does not say what its items are: add items")
    else:
        _check(schema["items"], root, f"items of {where}", refs)


def _check_object(schema: Mapping[str, Any], root: Mapping[str, Any], where: str, refs: tuple[str, ...]) -> None:
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise _refuse(where, "has properties that are not an object")
    required = schema.get("required", [])
    if not isinstance(required, list):
        raise _refuse(where, "has required that is not a list")
    if missing := [name for name in required if name not in properties]:
        raise _refuse(where, f"requires {missing[0]!r}, which is not among its properties")
    if not properties and not isinstance(schema.get("additionalProperties", True), bool):
        raise _refuse(where, "has additionalProperties and no properties: name the properties")
    if not properties and schema.get("additionalProperties") is False:
        raise _refuse(where, "allows only the empty object: name its properties")
    for name, one in properties.items():
        if not re.fullmatch(r"[\w -]+", name):  # outlines-core neither escapes nor quotes it
            raise _refuse(where, f"has a property {name!r}: names may have letters, digits, spaces, - and _")
        _check(one, root, f"{name} of {where}", refs)


CHECKS = {
    "type": _check_type,
    "enum": _check_values,
    "const": _check_values,
    "anyOf": _check_all,
    "allOf": _check_all,
    "$ref": _check_reference,
}
