"""Whether a JSON schema that refers to itself has a finite value at all."""

from collections.abc import Mapping
from typing import Any


def has_finite_value(schema: Any) -> bool:
    """Return False if every value would have to contain another of its kind, without end.

    The least fixed point over the schema's references: a reference has a finite value once its
    target has one, given those found so far. What is not understood counts as finite, since the
    compiler judges everything else.
    """
    finite: set[str] = set()
    while True:
        found = {
            pointer
            for pointer in _references(schema)
            if pointer not in finite and _finite(_resolve(schema, pointer), finite)
        }
        if not found:
            return _finite(schema, finite)
        finite |= found


def _references(node: Any) -> set[str]:
    if isinstance(node, Mapping):
        own = node.get("$ref")
        found = {own} if isinstance(own, str) else set()
        return found.union(*(_references(child) for child in node.values()))
    if isinstance(node, list):
        return set().union(*(_references(child) for child in node))
    return set()


def _resolve(schema: Any, pointer: str) -> Any:
    """Return what ``pointer`` names, or True if it is not a plain path from the root."""
    if not pointer.startswith("#"):
        return True
    node = schema
    for part in pointer[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or key not in node:
            return True
        node = node[key]
    return node


def _finite(schema: Any, finite: set[str]) -> bool:
    """Return whether ``schema`` has a finite value if exactly the references ``finite`` do."""
    if not isinstance(schema, Mapping):
        return True
    if isinstance(schema.get("$ref"), str) and schema["$ref"] not in finite:
        return False
    for name in ("anyOf", "oneOf"):
        options = schema.get(name)
        if isinstance(options, list) and not any(_finite(option, finite) for option in options):
            return False
    every = schema.get("allOf")
    if isinstance(every, list) and not all(_finite(part, finite) for part in every):
        return False
    kinds = {"object": _finite_object, "array": _finite_array}
    named = schema.get("type")
    types = [named] if isinstance(named, str) else named
    if "enum" in schema or "const" in schema or not isinstance(types, list):
        return True
    return any(kind not in kinds or kinds[kind](schema, finite) for kind in types)


def _finite_object(schema: Mapping[str, Any], finite: set[str]) -> bool:
    required, properties = schema.get("required", []), schema.get("properties", {})
    if not isinstance(required, list) or not isinstance(properties, Mapping):
        return True
    return all(_finite(properties.get(name, True), finite) for name in required)


def _finite_array(schema: Mapping[str, Any], finite: set[str]) -> bool:
    least, first = schema.get("minItems", 0), schema.get("prefixItems", [])
    if not isinstance(least, int) or not isinstance(first, list):
        return True
    items = [*first[:least], *([schema.get("items", True)] if least > len(first) else [])]
    return all(_finite(item, finite) for item in items)
