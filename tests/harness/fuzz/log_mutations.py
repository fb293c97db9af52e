"""Damage to the JSON of a log: commits, V2 checkpoints, `_last_checkpoint`."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.harness.fuzz.categories import Category, note
from tests.harness.fuzz.expectation import Expectation
from tests.harness.fuzz.hostile_values import (
    DATE_TEXTS,
    NUMBER_TEXTS,
    NUMBERS,
    PROPERTIES,
    TEXTS,
    TYPES,
    choose,
    hostile_number,
    hostile_path,
    hostile_value,
    nested_json,
    nested_type,
)
from tests.harness.fuzz.json_mutations import damage_json, damage_place, iter_places

Lines = list[Any]
Damage = tuple[Expectation, str]

_STORAGE_TYPES = ("u", "p", "i", "", "x", "uu", None, 3)


def parse_lines(data: bytes) -> Lines | None:
    """The objects of a file, None where it is not made of JSON objects."""
    try:
        lines = [json.loads(line) for line in data.split(b"\n") if line.strip()]
    except (ValueError, RecursionError):
        return None
    return lines if lines and all(isinstance(line, dict) for line in lines) else None


def serialize_lines(lines: Lines) -> bytes:
    """A file of the log."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def damage_log_text(data: bytes, rng: Random) -> tuple[bytes, Damage]:
    """Damage one file of JSON lines, mostly so that each line stays JSON."""
    lines = parse_lines(data)
    if lines is None:
        return data, (Expectation.SAME, "not JSON lines, left as it is")
    kind = rng.choice(_DAMAGES)
    note(rng, Category.OTHER_CONTENT)
    if kind is _as_text:
        return _as_text(lines, rng)
    expectation, what = kind(lines, rng)
    return serialize_lines(lines), (expectation, what)


def _any_place(lines: Lines, rng: Random) -> Damage:
    places = list(iter_places(lines))
    container, key = rng.choice(places)
    return Expectation.ANY, damage_place(container, key, rng)


def _line_order(lines: Lines, rng: Random) -> Damage:
    at = rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[at]
            return Expectation.ANY, f"line {at} gone"
        case 1:
            # The same action twice in one commit is one action, but for the files of the change feed.
            lines.insert(at, copy.deepcopy(lines[at]))
            return Expectation.ANY if "cdc" in lines[at] else Expectation.SAME, f"line {at} twice"
        case 2:
            lines.insert(rng.randrange(len(lines)), lines.pop(at))
            return Expectation.ANY, f"line {at} moved"
        case _:
            other = rng.randrange(len(lines))
            lines[at] = {**lines[other], **lines[at]}
            return Expectation.ANY, f"line {other} merged into line {at}"


def _unknown_things(lines: Lines, rng: Random) -> Damage:
    value = hostile_value(rng)
    if rng.random() < 0.5:
        lines.insert(rng.randrange(len(lines) + 1), {"somethingNew": value})
        return Expectation.SAME, "an unknown action"
    bodies = [body for line in lines for name, body in line.items() if isinstance(body, dict) and name != "commitInfo"]
    if not bodies:
        return Expectation.SAME, "nothing to add a field to"
    rng.choice(bodies)["somethingNew"] = value
    return Expectation.SAME, "an unknown field"


def _as_text(lines: Lines, rng: Random) -> tuple[bytes, Damage]:
    """The same JSON in another spelling, or text that is no JSON."""
    match rng.randrange(7):
        case 0:
            text = "".join(json.dumps(line, indent=None, separators=(" , ", " : ")) + "\r\n" for line in lines)
            return text.encode(), (Expectation.SAME, "other white space")
        case 1:
            text = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n \n\n"
            return text.encode("utf-8", "surrogatepass"), (Expectation.ANY, "blank lines between")
        case 2:
            return serialize_lines(lines).rstrip(b"\n"), (Expectation.SAME, "no line break at the end")
        case 3:
            depth = rng.choice([500, 1100, 100_000])
            extra = nested_json(rng, depth, rng.choice(["list", "object"]))
            name = rng.choice(["somethingNew", "add", "metaData", "commitInfo", "protocol", "txn"])
            return serialize_lines(lines) + f'{{"{name}":{extra}}}\n'.encode(), (
                Expectation.ANY,
                f"{depth} brackets deep {name}",
            )
        case 4:
            text = serialize_lines(lines).decode()
            number = rng.choice(["1e999", "-1e999", "9" * 5000, "1e-400", "NaN", "Infinity", "01", "0.1e1", "-", "1e3"])
            for name in ('"size": ', '"version": ', '"modificationTime": ', '"minReaderVersion": '):
                head, found, tail = text.partition(name)
                if found and rng.random() < 0.7:
                    rest = tail.lstrip("-0123456789")
                    return f"{head}{found}{number}{rest}".encode(), (Expectation.ANY, f"{name}{number[:20]}")
            return text.encode(), (Expectation.SAME, "nothing to change")
        case 5:
            data = serialize_lines(lines)
            return b"\xef\xbb\xbf" + data, (Expectation.ANY, "a byte order mark")
        case _:
            encoding = rng.choice(["utf-16", "utf-32", "latin-1"])
            return serialize_lines(lines).decode().encode(encoding), (Expectation.ANY, f"encoded as {encoding}")


def _bodies(lines: Lines, *names: str) -> list[dict[str, Any]]:
    return [body for line in lines for name, body in line.items() if name in names and isinstance(body, dict)]


def _in_body(*names: str) -> Callable[[Callable[[dict[str, Any], Random], str]], Callable[[Lines, Random], Damage]]:
    """Apply a damage to the body of one action of those names."""

    def decorate(function: Callable[[dict[str, Any], Random], str]) -> Callable[[Lines, Random], Damage]:
        def damage(lines: Lines, rng: Random) -> Damage:
            bodies = _bodies(lines, *names)
            if not bodies:
                return _any_place(lines, rng)
            return Expectation.ANY, function(rng.choice(bodies), rng)

        return damage

    return decorate


@_in_body("add", "remove", "cdc", "sidecar")
def _path(body: dict[str, Any], rng: Random) -> str:
    body["path"] = hostile_path(rng)
    return f"path {body['path'][:60]!r}"


@_in_body("add", "remove", "cdc")
def _partition_values(body: dict[str, Any], rng: Random) -> str:
    values = body.get("partitionValues") or {}
    if not isinstance(values, dict):
        values = {}
    name = rng.choice([*values, "x", ""]) if values else "x"
    values[name] = choose(rng, rng.choice(NUMBER_TEXTS), rng.choice(DATE_TEXTS), rng.choice(TEXTS), hostile_value)
    body["partitionValues"] = values
    return f"partition value {name}={str(values[name])[:60]!r}"


@_in_body("add")
def _stats(body: dict[str, Any], rng: Random) -> str:
    text = body.get("stats")
    if not isinstance(text, str):
        text = '{"numRecords": 3, "minValues": {"id": 1}, "maxValues": {"id": 5}, "nullCount": {"id": 0}}'
    match rng.randrange(4):
        case 0:
            body["stats"] = choose(rng, "", "{", "[]", "null", "7", text[:-1], text * 2, _nested_object)
        case 1:
            body["stats"] = text.replace("1", rng.choice(["1e999", "99999999999999999999", "-1", "NaN", "1.5"]), 1)
        case _:
            try:
                damaged, _ = damage_json(json.loads(text), rng)
                body["stats"] = json.dumps(damaged)
            except (ValueError, RecursionError):
                body["stats"] = "{}"
    return f"stats {body['stats'][:100]}"


def _nested_object(rng: Random) -> str:
    return nested_json(rng, 2000, "object")


@_in_body("add", "remove", "cdc", "sidecar")
def _sizes(body: dict[str, Any], rng: Random) -> str:
    """What a file is said to hold: bytes and rows."""
    names = [name for name in ("size", "sizeInBytes", "stats", "baseRowId", "modificationTime") if name in body]
    name = rng.choice(names or ["size"])
    if name == "stats":
        try:
            stats = json.loads(body[name])
        except (TypeError, ValueError, RecursionError):
            stats = {}
        stats = stats if isinstance(stats, dict) else {}
        body[name] = json.dumps({**stats, "numRecords": hostile_number(rng)})
    else:
        body[name] = hostile_number(rng)
    return f"{name}={str(body[name])[:80]}"


@_in_body("metaData")
def _schema_string(body: dict[str, Any], rng: Random) -> str:
    body["schemaString"] = damage_schema(str(body.get("schemaString")), rng)
    return f"schema {body['schemaString'][:100]}"


def damage_schema(text: str, rng: Random) -> str:
    """A damaged schema string."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        schema = {"type": "struct", "fields": []}
    match rng.randrange(6):
        case 0:
            return nested_json(rng, rng.choice([500, 1010, 50_000]), "list")
        case 1:
            note(rng, Category.DEEP_NESTING)
            depth = rng.choice([100, 330, 1000])
            return '{"type":"array","containsNull":true,"elementType":' * depth + '"long"' + "}" * depth
        case 2:
            return text[: rng.randrange(len(text) + 1)]
        case 3 | 4:
            places = [(c, k) for c, k in iter_places(schema) if k in ("type", "elementType", "keyType", "valueType")]
            if places:
                container, key = rng.choice(places)
                container[key] = nested_type(rng) if rng.random() < 0.3 else rng.choice(TYPES)
            return json.dumps(schema)
        case _:
            return json.dumps(damage_json(schema, rng)[0])


@_in_body("metaData")
def _configuration(body: dict[str, Any], rng: Random) -> str:
    configuration = body.get("configuration")
    if not isinstance(configuration, dict):
        configuration = {}
    name, value = rng.choice(PROPERTIES)
    configuration[name] = value
    if rng.random() < 0.2:
        configuration[rng.choice(TEXTS)] = hostile_value(rng)
    body["configuration"] = configuration
    return f"property {name}={value}"


@_in_body("metaData")
def _partition_columns(body: dict[str, Any], rng: Random) -> str:
    names = ["id", "nowhere", "ID", "", "place", "tags", "place.x", None, 3, ["id"]]
    body["partitionColumns"] = rng.choice(
        [["id"], ["id", "id"], ["nowhere"], "id", {"id": 1}, rng.sample(names, 2), [], None, 5]
    )
    return f"partition columns {body['partitionColumns']}"


@_in_body("protocol")
def _protocol(body: dict[str, Any], rng: Random) -> str:
    key = rng.choice(["minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"])
    known = ["deletionVectors", "columnMapping", "typeWidening", "v2Checkpoint", "variantType", "rowTracking", "x"]
    body[key] = choose(
        rng, rng.choice(NUMBERS), 1, 2, 3, 7, rng.sample(known, 3), None, "3", [None], [[]], hostile_value
    )
    return f"protocol {key}={str(body[key])[:60]}"


@_in_body("add", "remove")
def _deletion_vector(body: dict[str, Any], rng: Random) -> str:
    vector = body.get("deletionVector")
    if not isinstance(vector, dict):
        vector = {"storageType": "i", "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
                  "sizeInBytes": 44, "cardinality": 6}  # fmt: skip
    key = rng.choice(["storageType", "pathOrInlineDv", "sizeInBytes", "cardinality", "offset"])
    old = vector.get(key)
    match key:
        case "storageType":
            vector[key] = rng.choice(_STORAGE_TYPES)
        case "pathOrInlineDv":
            text = str(old)
            if rng.random() < 0.3:
                note(rng, Category.OUTSIDE_PATHS)
                vector[key] = rng.choice(["../" + text, "..%2f" + text, "a/../../" + text])
            else:
                vector[key] = choose(rng, text[:-1], text[5:], text.upper(), "", "a/" + text, "\0" + text, text * 2,
                                     "é" * 20, "%" * 20, hostile_path)  # fmt: skip
        case _:
            vector[key] = choose(rng, *[hostile_number] * 12, None, "1", old)
    body["deletionVector"] = vector
    return f"deletion vector {key}={str(vector[key])[:60]!r}"


@_in_body("commitInfo")
def _commit_info(body: dict[str, Any], rng: Random) -> str:
    key = rng.choice(["inCommitTimestamp", "timestamp", "operation", "operationParameters", "operationMetrics"])
    body[key] = choose(rng, rng.choice(NUMBERS), hostile_value)
    return f"commitInfo {key}={str(body[key])[:60]}"


_DAMAGES: Sequence[Callable[[Lines, Random], Any]] = (
    _any_place, _any_place, _any_place, _line_order, _unknown_things, _as_text, _path, _path, _partition_values, _stats,
    _stats, _schema_string, _schema_string, _configuration, _partition_columns, _protocol, _deletion_vector,
    _deletion_vector, _commit_info, _sizes,
)  # fmt: skip
