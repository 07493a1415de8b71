"""Random JSON schemas whose values are short."""

import random


def random_schema(generator: random.Random, depth: int = 2) -> dict:
    """Return a schema in which nothing is longer than five characters or four items."""
    kinds = ["integer", "string", "boolean", "enum", "null", "anyOf"]
    kind = generator.choice(kinds + ["object", "array", "object"] * (depth > 0))
    if kind == "object":
        names = generator.sample(
            ["a", "name", "größe", "x y", "0", "list"], generator.randint(0, 3)
        )
        return {
            "type": "object",
            "properties": {name: random_schema(generator, depth - 1) for name in names},
            "required": [name for name in names if generator.random() < 0.7],
            "additionalProperties": False,
        }
    if kind == "array":
        least = generator.randint(0, 2)
        most = least + generator.randint(0, 2)
        items = random_schema(generator, depth - 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": most}
    low = generator.randint(0, 3)
    simple = {
        "integer": {"type": "integer", "minimum": -low * 50, "maximum": low * 70},
        "string": {"type": "string", "minLength": low, "maxLength": low + generator.randint(0, 5)},
        "enum": {"enum": generator.sample(["red", 7, None, True, 'é\n"', 2.5, [1]], 3)},
        "anyOf": {
            "anyOf": [{"type": "boolean"}, {"const": low}, {"type": "string", "maxLength": 4}]
        },
    }
    return simple.get(kind, {"type": kind})
