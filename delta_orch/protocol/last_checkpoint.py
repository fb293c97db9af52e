"""`_last_checkpoint`: a hint that saves listing the whole log (PROTOCOL, "Last Checkpoint File").

Nothing may depend on it: a reader that finds it missing, broken or stale lists the log instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

from delta_orch.errors import ChecksumMismatchError, CorruptLogError
from delta_orch.protocol.actions import JsonObject, JsonValue


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """The content of the hint.

    Attributes:
        version: The version of the checkpoint.
        size: Number of actions in the checkpoint; None where the writer left it out.
        parts: Number of files of a multi-part checkpoint, else None.
        size_in_bytes: Size of the checkpoint.
        num_of_add_files: Number of `add` actions in it.
        extra: Every other field, as parsed (`checkpointSchema`, `tags`, `v2Checkpoint`, …).
    """

    version: int
    size: int | None = None
    parts: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None
    extra: JsonObject = field(default_factory=dict, hash=False)


_KEYS = {
    "version": "version",
    "size": "size",
    "parts": "parts",
    "size_in_bytes": "sizeInBytes",
    "num_of_add_files": "numOfAddFiles",
}


def parse_last_checkpoint(data: bytes) -> LastCheckpoint:
    """Parse the hint and verify its checksum where it has one.

    Raises:
        ChecksumMismatchError: The checksum does not fit the content.
        CorruptLogError: Not a JSON object with a version, or a key occurs twice.
    """
    try:
        text = data.decode()
        values = json.loads(text, object_pairs_hook=_unique_keys)
        if not isinstance(values, dict):
            raise ValueError("not an object")
        numbers = {name: values.pop(key, None) for name, key in _KEYS.items()}
        if not all(_is_version(n) or (n is None and name != "version") for name, n in numbers.items()):
            raise ValueError("a number is missing or of the wrong type")
    except (ValueError, RecursionError) as e:
        raise CorruptLogError(
            "_last_checkpoint cannot be read", cause=str(e), path="_delta_log/_last_checkpoint"
        ) from None
    checksum = values.pop("checksum", None)
    if checksum is not None and checksum != checksum_json(text):
        raise ChecksumMismatchError(
            "_last_checkpoint does not match its own checksum",
            path="_delta_log/_last_checkpoint",
            recorded=checksum,
            computed=checksum_json(text),
        )
    return LastCheckpoint(**numbers, extra=values)


def serialize_last_checkpoint(last: LastCheckpoint) -> bytes:
    """The content of `_last_checkpoint`, with its checksum."""
    values = {key: v for name, key in _KEYS.items() if (v := getattr(last, name)) is not None}
    values.update(last.extra)
    values["checksum"] = checksum_json(json.dumps(values))
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def checksum_json(text: str) -> str:
    """The MD5 checksum of a JSON object, its top-level `checksum` left out (PROTOCOL, "JSON checksum")."""
    from hashlib import md5  # loads OpenSSL; most hints have no checksum

    return md5(canonicalize_json(text).encode(), usedforsecurity=False).hexdigest()


def canonicalize_json(text: str) -> str:
    """The canonical form of a JSON object (PROTOCOL, "JSON checksum").

    Raises:
        ValueError: Not JSON, or an object holds a key twice.
    """
    # Numbers are their own canonical form: they stay the text they were written as.
    root = json.loads(
        text, object_pairs_hook=_unique_keys, parse_int=_Literal, parse_float=_Literal, parse_constant=_refuse_constant
    )
    if isinstance(root, dict):
        root.pop("checksum", None)
    pairs = sorted((path.encode(), value) for path, value in _leaves(root, ""))
    return ",".join(f"{path.decode()}={value}" for path, value in pairs)


class _Literal(str):
    """A number as it was spelled."""

    __slots__ = ()


def _leaves(value: JsonValue, path: str) -> Iterator[tuple[str, str]]:
    joint = f"{path}+" if path else ""
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _leaves(child, f"{joint}{_quoted(name)}")
    elif isinstance(value, list):
        for position, child in enumerate(value):
            yield from _leaves(child, f"{joint}{position}")
    elif isinstance(value, _Literal):
        yield path, str(value)
    elif isinstance(value, str):
        yield path, _quoted(value)
    else:
        yield path, {None: "null", True: "true", False: "false"}[value]


def _quoted(text: str) -> str:
    # `quote` leaves letters, digits and `_.-~` bare and writes upper-case hex: the rules of the protocol.
    return f'"{quote(text, safe="")}"'


def _unique_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return values


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _is_version(value: JsonValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
