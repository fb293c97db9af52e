"""`@checked`: arguments that Python would take for something else are refused before a public function runs, such as a
text where a list is meant, "no" for a switch, a number beyond 64 bits, or a text that is none of the choices.

An annotation says what fits if it consists of plain names: `str`, `int`, `float`, `bool`, `None`, `PathLike`,
`Mapping`, `Sequence` and its kinds, `Callable`, `Literal`, or a class that its module imports. Other annotations take
every value, and the function itself finds out whether it fits.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from math import isfinite
from os import PathLike
from types import FunctionType
from typing import Any, Literal, TypeVar, get_origin, is_typeddict

from delta_orch.errors import InvalidExpressionError, InvalidPropertyError, InvalidRequestError

Checked = TypeVar("Checked")
Kind = TypeVar("Kind", bound=type)
Test = Callable[[object], bool]

_LARGEST = 2**63 - 1
_ERRORS = {"properties": InvalidPropertyError, "expression": InvalidExpressionError}
_PLAIN: dict[str, Test] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
}
_COLLECTIONS = ("Sequence", "Iterable", "Iterator", "Collection", "list", "tuple", "set", "frozenset")
_READ_LATER = ("table_uri", "storage_options")
"""Types that the functions for Dagster also take as `dg.EnvVar`, which is read in the run."""


def checked(public: Checked) -> Checked:
    """A function whose arguments are checked before it runs, or a class whose public methods do so.

    Raises (the function):
        InvalidRequestError: An argument does not fit. Nothing was done.
    """
    if isinstance(public, FunctionType):
        return _wrapped(public)  # type: ignore[return-value]
    for owner in reversed(getattr(public, "__mro__", ())):
        for name, method in list(vars(owner).items()):
            is_own = isinstance(method, FunctionType) and method.__module__.startswith("delta_orch.")
            if is_own and not name.startswith("_") and getattr(public, name) is method:
                setattr(public, name, _wrapped(method))
    return public


def checked_constructor(kind: Kind) -> Kind:
    """A class whose constructor checks its arguments."""
    kind.__init__ = _wrapped(vars(kind)["__init__"])  # type: ignore[misc]
    return kind


def ensure_types(arguments: Mapping[str, object], kind: type) -> None:
    """Check keyword arguments against a `TypedDict`.

    Raises:
        InvalidRequestError: One does not fit. Nothing was done.
    """
    for name, parameter in _options_of(kind).items():
        if name in arguments:
            parameter.fit(arguments[name])


@cache
def _options_of(kind: type) -> dict[str, _Parameter]:
    """The keys of a `TypedDict`, whose annotations are forward references."""
    return {name: _Parameter(name, t.__forward_arg__, {}, kind.__module__) for name, t in kind.__annotations__.items()}


def _wrapped(function: FunctionType) -> Callable[..., Any]:
    if hasattr(function, "__wrapped__") or not function.__annotations__.keys() - {"return"}:
        return function
    code = function.__code__
    more = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & 0x04 else ""
    parameters: dict[str, _Parameter] = {}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not parameters:
            parameters.update(
                (name, _Parameter(name, text, function.__globals__, function.__module__))
                for name, annotation in function.__annotations__.items()
                if name != "return" and (text := _text_of(annotation)) != "object"
            )
        names = (*code.co_varnames[: code.co_argcount], *[more] * len(args))
        values = list(args)
        for place, name in enumerate(names[: len(values)]):
            if name in parameters:
                values[place] = parameters[name].fit(values[place])
        for name in kwargs:
            if name in parameters:
                kwargs[name] = parameters[name].fit(kwargs[name])
        return function(*values, **kwargs)

    return call


class _Parameter:
    """The types and choices of one parameter.

    Args:
        names: What the names in the annotation stand for.
    """

    def __init__(self, name: str, annotation: str, names: Mapping[str, object], module: str) -> None:
        self._name = name
        # An alias of choices is shown as the choices.
        choices = {name: str(names[name]) for name in names if get_origin(names[name]) is Literal}
        self._text = annotation = re.sub(r"\w+", lambda name: choices.get(name[0], name[0]), annotation)
        self._fits = _test_of(ast.parse(annotation, mode="eval").body, names)
        self._is_mapping = "Mapping[" in annotation
        is_predicate = "Expression" in annotation
        self._error = InvalidExpressionError if is_predicate else _ERRORS.get(name, InvalidRequestError)
        self._may_be_read_later = name in _READ_LATER and module.startswith("delta_orch.dagster.")

    def fit(self, value: object) -> object:
        """The value; of a value of NumPy what it holds. Raises InvalidRequestError."""
        if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            value = value.tolist()
        if not self._fits(value):
            # Settings may be credentials.
            shown = "a text" if isinstance(value, str) and self._is_mapping else _shown(value)
            kinds = re.sub(r"(typing.Literal|Literal|OneOf)\[(.*?)\]", r"one of \2", self._text).replace(
                "PathLike[str]", "a path"
            )
            raise self._error(
                f"{self._name} must be {kinds.replace('None', 'nothing').replace(' | ', ' or ')}, not {shown}",
                remedy=self._remedy(value),
                argument=self._name,
            )
        for part in (value, *_members(value)):
            self._ensure_storable(part)
        return value

    def _remedy(self, value: object) -> str | None:
        if self._error is InvalidExpressionError:
            return "Write it as text in Spark SQL, for example \"day = '2013-01-01'\""
        is_list = isinstance(value, str) and "Sequence[" in self._text and not self._is_mapping
        return f"Write [{_shown(value)}]" if is_list else None

    def _ensure_storable(self, value: object) -> None:
        """Refuse what no table can hold: numbers beyond 64 bits, infinite ones, text that cannot be encoded."""
        problem = None
        if isinstance(value, float) and not isfinite(value):
            problem = "a finite number"
        elif isinstance(value, int) and not -_LARGEST - 1 <= value <= _LARGEST:
            problem = "a number of no more than 64 bits"
        elif isinstance(value, str) and not self._may_be_read_later and not _is_known(value):
            problem = "a text that is known now"
        elif isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            problem = "a text that can be encoded"
        if problem is not None:
            raise self._error(f"{self._name} must be {problem}, not {_shown(value)}", argument=self._name)


def _text_of(annotation: object) -> str:
    """An annotation as it is written. Modules for Dagster have objects, whose names come with their modules."""
    if isinstance(annotation, str):
        return annotation
    return (
        annotation.__name__ if isinstance(annotation, type) else re.sub(r"\b\w+(\.\w+)*\.(?=\w)", "", str(annotation))
    )


def _test_of(node: ast.expr, names: Mapping[str, object]) -> Test:
    """Whether a value is what an annotation says."""
    match node:
        case ast.BinOp(left=left, right=right):
            is_left, is_right = _test_of(left, names), _test_of(right, names)
            return lambda value: is_left(value) or is_right(value)
        case ast.Constant(value=None):
            return lambda value: value is None
        case ast.Subscript(value=ast.Name(id="Literal" | "OneOf") | ast.Attribute(attr="Literal"), slice=choices):
            return _is_one_of(ast.literal_eval(choices))
        case ast.Subscript(value=ast.Name(id="PathLike")):
            return lambda value: isinstance(value, PathLike)
        case ast.Subscript(value=ast.Name(id="Callable")):
            return callable
        case ast.Subscript(value=ast.Name(id="Mapping" | "dict"), slice=ast.Tuple(elts=[key, item])):
            is_key, is_item = _test_of(key, names), _test_of(item, names)
            # Where a text fits, the function itself turns other values into text.
            is_item = _is_anything if is_item("") else is_item
            return lambda value: (
                isinstance(value, Mapping) and all(is_key(name) and is_item(value[name]) for name in value)
            )
        case ast.Subscript(value=ast.Name(id=name), slice=item) if name in _COLLECTIONS:
            is_member = _is_anything if isinstance(item, ast.Tuple) else _test_of(item, names)
            return lambda value: _is_collection(value) and all(map(is_member, _members(value)))
        case ast.Name(id=name):
            return _PLAIN[name] if name in _PLAIN else _test_of_class(names.get(name))
    return _is_anything


def _is_anything(_: object) -> bool:
    return True


def _test_of_class(kind: object) -> Test:
    is_open = kind in (object, Any) or is_typeddict(kind) or getattr(kind, "_is_protocol", False)
    return (lambda value: isinstance(value, kind)) if isinstance(kind, type) and not is_open else _is_anything


def _is_one_of(choices: object) -> Test:
    allowed = choices if isinstance(choices, tuple) else (choices,)
    return lambda value: any(type(value) is type(choice) and value == choice for choice in allowed)


def _is_collection(value: Any) -> bool:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        return False
    # A tuple of its own kind, such as Dagster's AssetKey, may forbid it.
    return not isinstance(value, tuple) or type(value).__iter__ is tuple.__iter__


def _members(value: Any) -> Iterable[Any]:
    """The values inside that can be read more than once: members of a collection, texts of a mapping."""
    if isinstance(value, Mapping):
        return (part for item in value.items() for part in item if isinstance(part, str))
    return value if _is_collection(value) and hasattr(value, "__len__") else ()


def _is_known(text: str) -> bool:
    """False for a variable that is read later, such as Dagster's EnvVar."""
    try:
        return type(text).__str__ is str.__str__ or isinstance(str(text), str)
    except RuntimeError:
        return False


def _shown(value: object) -> str:
    """A value in a message: short, and no more than the types of what is in it."""
    if type(value) in (bool, type(None), float, str) or (type(value) is int and abs(value) <= _LARGEST):
        return repr(value) if len(repr(value)) < 80 else f"{repr(value)[:60]}…"
    if isinstance(value, list | tuple) and type(value) in (list, tuple) and value:
        return f"a {type(value).__name__} of {' and '.join(sorted({type(part).__name__ for part in value})[:3])}"
    return f"a value of type {type(value).__name__[:100]}"
