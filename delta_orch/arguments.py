"""Arguments are checked once, at the public surface, against the signature that the method shows its user.

`@checked` reads each annotation when it first needs it. A value that fits at first sight costs no more than a
comparison of types; names that are imported for type checkers only are imported where a value does not fit before.

The rules beyond the annotations: `bool` takes `True` and `False` alone, so that no switch is set by accident. A value
of NumPy counts as what it holds. Numbers are finite and fit 64 bits. Text can be encoded. What the annotation does
not tell is left to the method.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, wraps
from math import isfinite
from pathlib import Path
from types import FunctionType, GenericAlias, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, is_typeddict

from delta_orch.errors import InvalidExpressionError, InvalidPropertyError, InvalidRequestError

Checked = TypeVar("Checked")
Kind = TypeVar("Kind", bound=type)

_Positional = tuple[object, ...]

_LARGEST = 2**63 - 1
_FIRST_SIGHT = {"str": str, "int": int, "float": float, "bool": bool, "None": type(None)}
_ERRORS: dict[str, type[InvalidRequestError]] = {
    "properties": InvalidPropertyError,
    "expression": InvalidExpressionError,
}
_NO_DEFAULT = object()
_LATER = ("table_uri", "storage_options")
"""What may be a variable that is read in the run, Dagster's EnvVar, where Dagster's own functions take it."""
_CONTAINERS = ("Sequence", "Iterable", "Iterator", "Collection", "list", "tuple", "set", "frozenset")
_BODY = re.compile(r"^(?:@|def |async def |class )", re.MULTILINE)
"""Where the imports of a module have ended."""


def checked(public: Checked) -> Checked:
    """A class whose public methods, and a function whose arguments are checked before it runs.

    Raises (what is returned):
        InvalidRequestError: An argument is not of its type. Nothing was done.
        TypeError: The call itself has another shape than the signature.
    """
    if isinstance(public, FunctionType):
        return _wrapped(public)  # type: ignore[return-value]
    # What it inherits from parts of its own facade, too.
    for owner in reversed(getattr(public, "__mro__", ())):
        for name, method in list(vars(owner).items()):
            is_own = isinstance(method, FunctionType) and method.__module__.startswith("delta_orch.")
            if is_own and not name.startswith("_") and getattr(public, name) is method:
                setattr(public, name, _wrapped(method, public))
    return public


def checked_constructor(kind: Kind, passes: Callable[[str, object], bool] | None = None) -> Kind:
    """A class whose own constructor, where it has one, checks its arguments. What `passes` says of an argument's name
    and value comes first: true for one that is taken as it is."""
    function = vars(kind).get("__init__")
    if isinstance(function, FunctionType):
        kind.__init__ = _wrapped(function, passes=passes)  # type: ignore[misc]
    return kind


def ensure_arguments(kind: type, given: dict[str, object]) -> None:
    """Check keyword arguments for a class whose constructors are `checked_constructor`'s, before there is an object.

    Raises:
        InvalidRequestError: One is not of its type.
    """
    for owner in kind.__mro__:
        signature = getattr(vars(owner).get("__init__"), "checks", None)
        if signature is not None:
            signature.check((), given)


def _wrapped(
    function: FunctionType, owner: Any = object, passes: Callable[[str, object], bool] | None = None
) -> Callable[..., Any]:
    if hasattr(function, "__wrapped__") or (owner is object and not set(function.__annotations__) - {"return"}):
        return function
    signature = _Signature(function, passes)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and not isinstance(args[0], owner):
            raise InvalidRequestError(
                f"{function.__name__} was called on the class, without an object",
                remedy=f"Make the object first: DeltaTable(location).{function.__name__}(…), for example",
            )
        if len(args) > signature.num_bound or kwargs:
            args, kwargs = signature.check(args, kwargs)
        return function(*args, **kwargs)

    call.checks = signature  # type: ignore[attr-defined]
    return call


class _Signature:
    def __init__(self, function: FunctionType, passes: Callable[[str, object], bool] | None) -> None:
        self._passes = passes
        code = function.__code__
        self._function = function
        self._names = code.co_varnames[: code.co_argcount]
        self._keywords = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :]
        self._more = rest[0] if code.co_flags & 0x04 else None
        self._options = rest[bool(self._more)] if code.co_flags & 0x08 else None
        self.num_bound = int(self._names[:1] == ("self",))
        self._kinds: dict[str, _Kind] | None = None

    def check(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        kinds = self._kinds
        if kinds is None:
            kinds = self._kinds = self._read()
        start = self.num_bound
        for position in range(start, len(args)):
            name = self._names[position] if position < len(self._names) else self._more
            kind = None if name is None else kinds.get(name)
            if kind is not None and (fit := self._fit(str(name), kind, args[position])) is not args[position]:
                args = (*args[:position], fit, *args[position + 1 :])
        for name, value in kwargs.items():
            kind = kinds.get(name)
            if kind is not None and (fit := self._fit(name, kind, value)) is not value:
                kwargs = {**kwargs, name: fit}
        return args, kwargs

    def _fit(self, name: str, kind: _Kind, value: object) -> object:
        return value if self._passes is not None and self._passes(name, value) else kind.fit(value)

    def _read(self) -> dict[str, _Kind]:
        scope = _Scope(self._function.__module__)
        defaults = {**(self._function.__kwdefaults__ or {})}
        positional = self._function.__defaults__ or ()
        defaults.update(zip(self._names[len(self._names) - len(positional) :], positional, strict=True))
        found = {}
        for name, annotation in self._function.__annotations__.items():
            if name == self._options:
                found.update(_options(annotation, scope))
            elif name != "return":
                found[name] = _Kind(name, annotation, scope, defaults.get(name, _NO_DEFAULT))
        return found


class _Scope:
    """What the names of a module's annotations stand for."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._imports: dict[str, tuple[str, str | None]] | None = None

    def home_of(self, name: str) -> _Scope:
        """Where a name comes from, for aliases that are text."""
        found = self._all_imports().get(name)
        return self if found is None else _Scope(found[0])

    def _all_imports(self) -> dict[str, tuple[str, str | None]]:
        if self._imports is None:
            self._imports = _imports_of(self.module)
        return self._imports

    def __getitem__(self, name: str) -> object:
        """Raises KeyError where nothing is known of a name."""
        known = vars(sys.modules[self.module])
        if name in known:
            return known[name]
        if name in self._all_imports():
            from importlib import import_module

            module, attribute = self._all_imports()[name]
            try:
                found = import_module(module)
            except ImportError:
                # Nobody can have a value of a type whose package is not there.
                raise KeyError(name) from None
            return found if attribute is None else getattr(found, attribute)
        import builtins

        return vars(builtins)[name]


@cache
def _imports_of(module: str) -> dict[str, tuple[str, str | None]]:
    """The names that a module imports, also under `if TYPE_CHECKING:`."""
    file = sys.modules[module].__file__
    if file is None or not file.endswith(".py"):
        return {}
    found: dict[str, tuple[str, str | None]] = {}
    # To parse a whole module takes longer than to read a small table.
    head = _BODY.split(Path(file).read_text(encoding="utf-8"), maxsplit=1)[0]
    for part in ast.parse(head).body:
        for line in part.body if isinstance(part, ast.If) else (part,):
            if isinstance(line, ast.ImportFrom) and line.module:
                found.update({n.asname or n.name: (line.module, n.name) for n in line.names})
            elif isinstance(line, ast.Import):
                found.update({n.asname or n.name: (n.name, None) for n in line.names})
    return found


def _options(annotation: object, scope: _Scope) -> dict[str, _Kind]:
    """The keywords of `**options: Unpack[SomeTypedDict]`. Unknown ones are the method's to name."""
    parsed = ast.parse(annotation, mode="eval").body if isinstance(annotation, str) else None
    if not isinstance(parsed, ast.Subscript) or not isinstance(parsed.slice, ast.Name):
        return {}
    kind = scope[parsed.slice.id]
    found: dict[str, _Kind] = {}
    for base in reversed([kind, *getattr(kind, "__orig_bases__", ())]):
        if is_typeddict(base):
            inner = _Scope(base.__module__)
            for name, given in base.__annotations__.items():
                if name not in found:
                    told = given.__forward_arg__ if hasattr(given, "__forward_arg__") else given
                    module = getattr(given, "__forward_module__", None)
                    found[name] = _Kind(name, told, _Scope(module) if isinstance(module, str) else inner, _NO_DEFAULT)
    return found


class _Kind:
    """What one parameter takes."""

    def __init__(self, name: str, annotation: object, scope: _Scope, default: object) -> None:
        self._name = name
        self._annotation = annotation
        self._scope = scope
        self._default = default
        self._tree: ast.expr | None = None
        text = annotation if isinstance(annotation, str) else ""
        self._error = InvalidExpressionError if "Expression" in text else _ERRORS.get(name, InvalidRequestError)
        self._plain = frozenset(t for part in text.split("|") if (t := _FIRST_SIGHT.get(part.strip())) is not None)
        self._may_be_later = name in _LATER and scope.module.startswith("delta_orch.dagster.")

    def fit(self, value: object) -> object:
        """The value, or what it stands for. Raises InvalidRequestError."""
        kind = type(value)
        if self._annotation == "object":
            return value
        if kind in self._plain and (kind is bool or value is None):
            return value
        if value is self._default and not isinstance(value, float):
            return value
        if kind.__module__ == "numpy" and hasattr(value, "tolist"):
            value = value.tolist()
        if not self._takes(value):
            raise self._error(
                # Settings may be credentials.
                f"{self._name} must be {self._shown()}, not "
                + ("a text" if isinstance(value, str) and "Mapping[" in str(self._annotation) else _shown(value)),
                remedy=self._remedy(value),
                argument=self._name,
            )
        _ensure_sane(self._name, value, self._error, self._may_be_later)
        return value

    def _remedy(self, value: object) -> str | None:
        if self._error is InvalidExpressionError:
            return "Write it as text in Spark SQL, for example \"day = '2013-01-01'\""
        is_list = "Sequence[" in str(self._annotation) and "Mapping[" not in str(self._annotation)
        return f"Write [{_shown(value)}]" if isinstance(value, str) and is_list else None

    def _takes(self, value: object) -> bool:
        if type(value) in self._plain:
            return True
        if not isinstance(self._annotation, str):
            return _is_of(value, self._annotation, self._scope)
        if self._tree is None:
            self._tree = ast.parse(self._annotation, mode="eval").body
        return _is_of_tree(value, self._tree, self._scope)

    def _shown(self) -> str:
        text = self._annotation if isinstance(self._annotation, str) else str(self._annotation)
        text = re.sub(r"\b[A-Z]\w+", self._spelled_out, text)
        choices = re.search(r"(?:Literal|OneOf)\[(.*?)\]", text)
        if choices is not None:
            text = f"one of {choices[1]}" + text[choices.end() :]
        return text.replace("PathLike[str]", "a path").replace("None", "nothing").replace(" | ", " or ")

    def _spelled_out(self, name: re.Match[str]) -> str:
        """What an alias such as `Mode` or `Timestamp` stands for; another name as it is."""
        with suppress(KeyError):
            alias = self._scope[name[0]]
            if get_origin(alias) is Literal:
                return str(alias)
            if isinstance(alias, UnionType):
                return re.sub(r"\w+\.", "", str(alias))
        return name[0]


def _is_of_tree(value: object, tree: ast.expr, scope: _Scope) -> bool:
    """Whether a value is of the type that an annotation spells. True where nothing is known of it."""
    match tree:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_of_tree(value, left, scope) or _is_of_tree(value, right, scope)
        case ast.Constant(value=None):
            return value is None
        case ast.Constant(value=str() as text):
            return _is_of_tree(value, ast.parse(text, mode="eval").body, scope)
        case ast.Subscript(value=ast.Name(id="Literal" | "OneOf"), slice=inner):
            return _is_one_of(value, ast.literal_eval(inner))
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _CONTAINERS:
            item = inner.elts[0] if isinstance(inner, ast.Tuple) and len(inner.elts) == 2 and name == "tuple" else inner
            if isinstance(item, ast.Tuple) or (isinstance(inner, ast.Tuple) and _is_fixed(inner)):
                return isinstance(value, Iterable) and not isinstance(value, str | bytes)
            may_be_used_up = name in ("Iterable", "Iterator")
            if not _is_collection(value) or (isinstance(value, Iterator) and not may_be_used_up):
                return False
            return all(_is_of_tree(v, item, scope) for v in _members(value))
        case ast.Subscript(value=ast.Name(id="Mapping" | "dict"), slice=ast.Tuple(elts=[key, item])):
            # Of what may be a text the method itself says more.
            is_open = _is_of_tree("", item, scope)
            return isinstance(value, Mapping) and all(
                _is_of_tree(one, key, scope) and (is_open or _is_of_tree(value[one], item, scope)) for one in value
            )
        case ast.Subscript(value=ast.Name(id="Callable")):
            return callable(value)
        case ast.Subscript(value=inner):
            return _is_of_tree(value, inner, scope)
        case ast.Name(id=name):
            return _is_of_name(value, name, None, scope)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return _is_of_name(value, name, attribute, scope)
    return True


def _is_fixed(members: ast.Tuple) -> bool:
    last = members.elts[-1]
    return not (isinstance(last, ast.Constant) and last.value is Ellipsis)


def _is_of_name(value: object, name: str, attribute: str | None, scope: _Scope) -> bool:
    if any(c.__name__ == name and c.__module__.startswith("delta_orch.") for c in type(value).__mro__):
        return True  # without a look at the source for where the name comes from
    try:
        kind = scope[name]
    except KeyError:
        return False
    if isinstance(kind, str):
        return _is_of_tree(value, ast.parse(kind, mode="eval").body, scope.home_of(name))
    return _is_of(value, kind if attribute is None else getattr(kind, attribute), scope)


def _is_of(value: object, kind: object, scope: _Scope) -> bool:
    if kind is object or kind is Any:
        return True
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is None:
        return value is None
    origin = get_origin(kind)
    if origin in (Union, UnionType) or isinstance(kind, UnionType):
        return any(_is_of(value, part, scope) for part in get_args(kind))
    if origin is Literal:
        return _is_one_of(value, get_args(kind))
    if isinstance(kind, GenericAlias) or origin is not None:
        if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
            key, item = get_args(kind)
            is_open = _is_of("", item, scope)
            return isinstance(value, Mapping) and all(
                _is_of(one, key, scope) and (is_open or _is_of(value[one], item, scope)) for one in value
            )
        if isinstance(origin, type) and issubclass(origin, Iterable):
            item = get_args(kind)[0] if len(get_args(kind)) == 1 or get_args(kind)[1:] == (...,) else object
            if isinstance(value, Iterator) and not issubclass(Iterator, origin):
                return False
            return _is_collection(value) and all(_is_of(v, item, scope) for v in _members(value))
        return isinstance(value, origin) if isinstance(origin, type) else True
    if not isinstance(kind, type) or is_typeddict(kind):
        return True
    if getattr(kind, "_is_protocol", False) and kind.__module__.startswith("delta_orch"):
        # A seam such as `Engine`, which anybody may implement.
        return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
    return isinstance(value, kind)


def _is_one_of(value: object, choices: object) -> bool:
    among = choices if isinstance(choices, tuple) else (choices,)
    return any(type(value) is type(choice) and value == choice for choice in among)


def _is_collection(value: object) -> bool:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        return False
    # A tuple of its own kind, such as Dagster's AssetKey, may forbid it.
    return not isinstance(value, tuple) or type(value).__iter__ is tuple.__iter__


def _members(value: object) -> Iterable[object]:
    """What can be looked at without using it up."""
    return value if isinstance(value, Iterable) and hasattr(value, "__len__") else ()


def _ensure_sane(name: str, value: object, error: type[InvalidRequestError], may_be_later: bool) -> None:
    """Refuse what no table can hold: numbers beyond 64 bits, infinite ones, text that cannot be encoded."""
    if isinstance(value, str):
        if type(value).__str__ is not str.__str__ and not may_be_later and not _is_readable(value):
            raise error(
                f"{name} must be a text that is known now, not {_shown(value)}",
                remedy="Read the variable where the argument is given",
                argument=name,
            )
        if not value.isascii() and not _is_encodable(value):
            raise error(
                f"{name} holds text that cannot be encoded", cause="It has a lone surrogate in it", argument=name
            )
    elif isinstance(value, float):
        if not isfinite(value):
            raise error(f"{name} must be a finite number, not {value}", argument=name)
    elif isinstance(value, int):
        if not -_LARGEST - 1 <= value <= _LARGEST:
            raise error(f"{name} must be a number of no more than 64 bits", argument=name)
    elif isinstance(value, list | tuple) and type(value) in (list, tuple):
        for member in value:
            if isinstance(member, str | float | int):
                _ensure_sane(name, member, error, may_be_later)
    elif type(value) is dict:
        for key, member in value.items():
            if isinstance(key, str):
                _ensure_sane(name, key, error, False)
            if isinstance(member, str):
                _ensure_sane(name, member, error, may_be_later)


def _is_readable(text: str) -> bool:
    """False for a variable that is read later, such as Dagster's EnvVar."""
    try:
        return isinstance(str(text), str)
    except RuntimeError:
        return False


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    """A value in a message: short, and nothing of what its class does when it is printed."""
    if type(value) in (bool, type(None), float):
        return repr(value)
    if type(value) is int:
        return repr(value) if -_LARGEST <= value <= _LARGEST else "a huge int"
    if type(value) is str:
        return repr(value[:60]) + ("…" if len(value) > 60 else "")
    kind = type(value)
    if isinstance(value, list | tuple) and value and kind in (list, tuple):
        return f"a {kind.__name__} of {' and '.join(sorted({type(member).__name__[:100] for member in value})[:3])}"
    return f"a value of type {kind.__name__[:100]}"
