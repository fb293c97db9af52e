"""Damage to a table: one file of it, or which files there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random

from delta_orch.protocol.paths import LAST_CHECKPOINT_PATH
from tests.harness.fuzz.byte_mutations import damage_bytes
from tests.harness.fuzz.categories import Category, note
from tests.harness.fuzz.corpus import SeedTable
from tests.harness.fuzz.expectation import Expectation
from tests.harness.fuzz.hostile_values import choose, hostile_number, hostile_value, nested_json
from tests.harness.fuzz.json_mutations import damage_json
from tests.harness.fuzz.log_mutations import Damage, damage_log_text
from tests.harness.fuzz.parquet_mutations import damage_footer, damage_parquet

Files = dict[str, bytes]


_CHECKPOINT_MIDDLES = (
    ".checkpoint.",
    f".checkpoint.{1:010d}.{2:010d}.",
    f".checkpoint.{1:010d}.{10**9:010d}.",
    f".{9:020d}.compacted.",
    ".checkpoint.01234567-0123-0123-0123-0123456789ab.",
)


def damage_table(seed: SeedTable, others: Sequence[SeedTable], rng: Random) -> tuple[Files, Expectation, list[str]]:
    """One to three mutations of a table: its files, what must come out, and what was done."""
    files, expectation, done = dict(seed.files), Expectation.SAME, []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        mutation = rng.choice(_MUTATIONS)
        try:
            found, what = mutation(files, others, rng)
        except RecursionError:
            # Of what an earlier one has nested that deep no copy can be made.
            found, what = Expectation.ANY, "nested too deeply to be damaged again"
        expectation = max(expectation, found)
        done.append(what)
    return files, expectation, done


def _pick(files: Files, rng: Random, *endings: str, log: bool | None = None) -> str | None:
    found = [
        path for path in files if path.endswith(endings) and (log is None or path.startswith("_delta_log/") == log)
    ]
    return rng.choice(found) if found else None


def _log_text(files: Files, others: Sequence[SeedTable], rng: Random) -> Damage:
    path = _pick(files, rng, ".json", log=True)
    if path is None:
        return Expectation.SAME, "no JSON in the log"
    files[path], (expectation, what) = damage_log_text(files[path], rng)
    # A checkpoint or a compaction holds each file once: a row that comes twice is none a writer may leave.
    if ("checkpoint" in path or "compacted" in path) and expectation is Expectation.SAME and " twice" in what:
        expectation = Expectation.ANY
    return expectation, f"{path}: {what}"


def _log_bytes(files: Files, others: Sequence[SeedTable], rng: Random) -> Damage:
    path = _pick(files, rng, "", log=True)
    if path is None:
        return Expectation.SAME, "no log"
    files[path], what = damage_bytes(files[path], rng)
    expectation = Expectation.SAME if path == LAST_CHECKPOINT_PATH else Expectation.ANY
    return expectation, f"{path}: {what}"


def _last_checkpoint(files: Files, others: Sequence[SeedTable], rng: Random) -> Damage:
    """Whatever the hint says, what is read stays the same (PROTOCOL, "Last Checkpoint File")."""
    data = files.get(LAST_CHECKPOINT_PATH, b'{"version":1,"size":3}')
    match rng.randrange(5):
        case 0:
            files.pop(LAST_CHECKPOINT_PATH, None)
            return Expectation.SAME, "no _last_checkpoint"
        case 1:
            data = nested_json(rng, rng.choice([10, 5000, 100_000]), rng.choice(["list", "object"])).encode()
        case 2:
            names = ("version", "size", "parts", "sizeInBytes", "numOfAddFiles")
            data = json.dumps({name: choose(rng, hostile_number, hostile_value) for name in names}).encode()
        case 3:
            data = damage_bytes(data, rng)[0]
        case _:
            note(rng, Category.OTHER_CONTENT)
            try:
                data = json.dumps(damage_json(json.loads(data), rng)[0]).encode()
            except (ValueError, RecursionError):
                data = b""
    files[LAST_CHECKPOINT_PATH] = data
    return Expectation.SAME, f"_last_checkpoint {data[:80]!r}"


def _parquet_bytes(files: Files, others: Sequence[SeedTable], rng: Random) -> Damage:
    path = _pick(files, rng, ".parquet", log=rng.random() < 0.6)
    if path is None:
        return _log_bytes(files, others, rng)
    files[path], what = damage_bytes(files[path], rng)
    return Expectation.ANY, f"{path}: {what}"


def _parquet_content(files: Files, others: Sequence[SeedTable], rng: Random) -> Damage:
    path = _pick(files, rng, ".parquet", log=rng.random() < 0.7) or _pick(files, rng, ".parquet")
    if path is None:
        return _log_bytes(files, others, rng)
    files[path], what = damage_footer(files[path], rng) if rng.random() < 0.3 else damage_parquet(files[path], rng)
    return Expectation.ANY, f"{path}: {what}"


def _vector_file(files: Files, others: Sequence[SeedTable], rng: Random) -> Damage:
    path = _pick(files, rng, ".bin", log=False)
    if path is None:
        return _log_text(files, others, rng)
    files[path], what = damage_bytes(files[path], rng)
    # Size and checksum are verified before a byte is used.
    return Expectation.SAME_OR_ERROR, f"{path}: {what}"


def _which_files(files: Files, others: Sequence[SeedTable], rng: Random) -> Damage:
    if not files:
        return Expectation.SAME, "no files"
    path = rng.choice(list(files))
    note(rng, Category.SWAPPED_FILES)
    match rng.randrange(8):
        case 0:
            del files[path]
            return Expectation.ANY, f"{path} gone"
        case 1:
            other = rng.choice(list(files))
            files[path], files[other] = files[other], files[path]
            return Expectation.ANY, f"{path} and {other} swapped"
        case 2:
            other = _pick(files, rng, ".json", log=True) or path
            number = rng.choice([0, 1, 5, 11, 99, 9999, 10**19 - 1])
            files[f"_delta_log/{number:020d}.json"] = files[other]
            return Expectation.ANY, f"{other} as commit {number}, too"
        case 3:
            donor = rng.choice(others)
            same = [p for p in donor.files if p.rpartition(".")[2] == path.rpartition(".")[2]]
            if same:
                files[path] = donor.files[rng.choice(same)]
            return Expectation.ANY, f"{path} from {donor.name}"
        case 4:
            note(rng, Category.TRUNCATION)
            files[path] = b""
            return Expectation.ANY, f"{path} empty"
        case 5:
            donor = rng.choice(others)
            for name in donor.log_files():
                files[name] = donor.files[name]
            return Expectation.ANY, f"the log of {donor.name} over it"
        case 6:
            number = rng.choice([0, 3, 7, 10**18])
            middle = rng.choice(_CHECKPOINT_MIDDLES)
            note(rng, Category.HUGE_COUNTS)
            name = f"_delta_log/{number:020d}{middle}{rng.choice(['parquet', 'json'])}"
            files[name] = files[path]
            return Expectation.ANY, f"{path} as {name}"
        case _:
            names = [".tmp", "_x", "0.json", f"{0:019d}.json", f"{0:021d}.json", f"{3:020d}.json.tmp", "９.json",
                     f"{3:020d}.checkpoint.parquet.crc", f"{3:020d}.checkpoint.x.y.parquet"]  # fmt: skip
            name = f"_delta_log/{rng.choice(names)}"
            files[name] = files[path]
            return Expectation.SAME, f"a stranger {name}"


_MUTATIONS: Sequence[Callable[[Files, Sequence[SeedTable], Random], Damage]] = (
    _log_text, _log_text, _log_text, _log_text, _log_text, _log_text, _log_bytes, _last_checkpoint, _parquet_bytes,
    _parquet_bytes, _parquet_content, _parquet_content, _vector_file, _which_files,
)  # fmt: skip
