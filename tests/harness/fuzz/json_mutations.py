"""Damage to parsed JSON: it stays well-formed, its meaning does not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.harness.fuzz.categories import Category, note
from tests.harness.fuzz.hostile_values import hostile_value

Place = tuple[Any, Any]
"""A container and the key or index of one of its values."""


def damage_json(value: Any, rng: Random) -> tuple[Any, str]:
    """A copy with one place of it damaged, and which."""
    note(rng, Category.OTHER_CONTENT)
    changed = copy.deepcopy(value)
    places = list(iter_places(changed))
    if not places:
        return hostile_value(rng), "replaced altogether"
    container, key = rng.choice(places)
    return changed, damage_place(container, key, rng)


def damage_place(container: Any, key: Any, rng: Random) -> str:
    """Damage one value of a container in place, and say how."""
    old = container[key]
    match rng.randrange(8):
        case 0:
            del container[key]
            return f"{key!r} gone"
        case 1:
            container[key] = None
            return f"{key!r} null"
        case 2 if isinstance(container, dict):
            container[_changed_name(str(key), rng)] = container.pop(key)
            return f"{key!r} renamed"
        case 3 if isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), copy.deepcopy(old))
            return f"item {key} twice"
        case 4 if isinstance(old, (int, float)) and not isinstance(old, bool):
            container[key] = rng.choice([-old, old + 1, old * 2**33, str(old), float(old), [old]])
        case 5 if isinstance(old, str):
            container[key] = _changed_text(old, rng)
        case 6:
            container[key] = rng.choice([[old], {"a": old}, str(old), [old] * 3])
        case _:
            container[key] = hostile_value(rng)
    return f"{key!r} was {str(old)[:40]!r}, is {str(container[key])[:60]!r}"


def iter_places(value: Any) -> Iterator[Place]:
    """Every value inside a value."""
    if isinstance(value, dict):
        for key in value:
            yield value, key
            yield from iter_places(value[key])
    elif isinstance(value, list):
        for index in range(len(value)):
            yield value, index
            yield from iter_places(value[index])


def _changed_name(name: str, rng: Random) -> str:
    return rng.choice([name.upper(), name.lower(), name + " ", name[:-1], "", "\0", name + ".x", "x" + name])


def _changed_text(text: str, rng: Random) -> str:
    at = rng.randrange(len(text) + 1)
    return rng.choice(
        [
            "",
            text[:at],
            text[at:],
            text + text,
            text.upper(),
            text[:at] + rng.choice("\0%/.\\:\"'{}[]` \u2028é") + text[at:],
            text[:at] + chr(rng.randrange(1, 0xD800)) + text[at + 1 :],
            " " + text,
            text * 50,
        ]
    )
