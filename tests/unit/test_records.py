"""`delta_orch.records.dataclass` makes the classes that `dataclasses.dataclass` makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from delta_orch import records

NAN = float("nan")
Decorator = Callable[..., Callable[[type], type]]


def classes(dataclass: Decorator, field: Callable[..., Any]) -> dict[str, type]:
    """Classes of every kind, made with one of the two decorators."""

    @dataclass(frozen=True, slots=True)
    class Empty: ...

    @dataclass(frozen=True, slots=True)
    class One:
        a: float

    @dataclass(frozen=True, slots=True)
    class Defaults:
        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list)
        d: int = field(default=4, repr=False)
        e: int = field(default=5, compare=False)
        f: dict[str, int] = field(default_factory=dict, hash=False)

    @dataclass(frozen=True, slots=True)
    class ByName(One):
        b: int = field(default=0, kw_only=True)
        c: int = 1
        d: int = field(kw_only=True)

    @dataclass(frozen=True, slots=True)
    class After:
        a: int
        twice: int = field(init=False, default=7)
        made: list[int] = field(init=False, default_factory=list)
        unset: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "unset", self.a * 2)

    @dataclass(frozen=True, slots=True)
    class OwnFunctions:
        a: int
        b: int = 1

        def __repr__(self) -> str:
            return f"<{self.a}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and self.a == other.a

    @dataclass(frozen=True, slots=True)
    class OwnInit:
        a: int
        b: int = 1

        def __init__(self, a: int) -> None:
            object.__setattr__(self, "a", a + 1)
            object.__setattr__(self, "b", a)

        def __hash__(self) -> int:
            return 11

    @dataclass(frozen=True, slots=True, eq=False)
    class Identity:
        a: int
        b: int = 1

    @dataclass(frozen=True, slots=True, eq=False, repr=False)
    class Plain:
        a: int
        b: int = 1

    @dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        a: int
        b: int = 1

    @dataclass(slots=True)
    class Mutable:
        a: int
        b: int = 1

    return {name: value for name, value in locals().items() if isinstance(value, type)}


OURS, THEIRS = classes(records.dataclass, records.field), classes(dataclasses.dataclass, dataclasses.field)
ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((2,), {}),
    ((NAN,), {}),
    (("text", 3), {}),
    ((1,), {"d": 2}),
    ((1, 5), {"d": 2, "b": 3}),
    ((1, 2, 3, 4), {}),
    ((1,), {"a": 1}),
    ((1,), {"nothing": 1}),
    ((), {"a": (1, 2), "b": "x"}),
    (([1],), {}),
]


def facts(cls: type, *arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Any]:
    """What a user can see of the objects that a class makes of arguments."""
    made, seen = [], []
    for args, kwargs in arguments:
        seen.append(outcome(lambda made: repr_of(cls(*made[0], **made[1])), (args, kwargs)))
        if seen[-1][0] == "gives":
            made.append(cls(*args, **kwargs))
    for one in made:
        if any(f.name == "a" for f in dataclasses.fields(cls)):
            seen += [outcome(setattr, copy.copy(one), "a", 9), outcome(delattr, copy.copy(one), "a")]
        seen.append(outcome(lambda one: hash(one) == hash(copy.copy(one)), one))
        seen.append(outcome(lambda one: repr_of(dataclasses.replace(one, a=8)), one))
        seen.append(outcome(lambda one: repr(dataclasses.asdict(one)), one))
        seen.append(outcome(lambda one: (copy.copy(one) == one, repr_of(copy.deepcopy(one))), one))
        for two in [*made, 1, None]:
            seen += [outcome(compare, one, two) for compare in (operator.eq, operator.ne, operator.lt)]
    return seen


def repr_of(value: object) -> str:
    return repr(value).partition(" object at ")[0]


def outcome(of: Callable[..., Any], *args: Any) -> tuple[str, Any]:
    try:
        return "gives", of(*args)
    except (TypeError, AttributeError) as error:
        return type(error).__name__, str(error) if isinstance(error, dataclasses.FrozenInstanceError) else ""


@pytest.mark.parametrize("name", OURS)
def test_a_class_is_that_of_the_standard_library(name: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    assert facts(ours, *ARGUMENTS) == facts(theirs, *ARGUMENTS)
    ours_take, theirs_take = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    assert [(p.name, p.kind, p.annotation) for p in ours_take.values()] == [
        (p.name, p.kind, p.annotation) for p in theirs_take.values()
    ]
    assert ours.__match_args__ == theirs.__match_args__  # type: ignore[attr-defined]
    assert ours.__slots__ == theirs.__slots__  # type: ignore[attr-defined]
    assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]


def test_values_that_are_equal_hash_the_same_and_go_into_sets() -> None:
    one = OURS["Defaults"]
    assert {OURS["One"](1), OURS["One"](1.0), OURS["One"](2)} == {OURS["One"](1), OURS["One"](2)}
    with pytest.raises(TypeError, match="unhashable"):
        hash(one(1))
    assert one(1) == one(1, e=6)
    assert one(1) != one(1, d=6)


@records.dataclass(frozen=True, slots=True)
class Sent:
    a: int
    b: tuple[int, ...] = ()
    c: dict[str, int] = records.field(default_factory=dict)


def test_values_survive_a_pickle() -> None:
    sent = Sent(1, (2, 3), {"x": 4})
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(sent, protocol)) == sent
