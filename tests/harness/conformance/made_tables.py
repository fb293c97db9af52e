"""Tables that the suite makes, each with what a correct reader must return, in the layout of the golden cases.

Every reader feature has one, so that a checkout without golden tables tests all of them. Three sources: the package's
own verbs (`feature_tables`), logs written action by action (`fuzz/own_tables`, and below), and damaged copies of these.
The expected rows are known from how the table was made, and the expected state from `LogModel`. A table is written when
its case is first used.
"""

from __future__ import annotations

import atexit
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from delta_orch import DeltaTable, column
from delta_orch.log.write.deletion_vector_writer import write_deletion_vectors
from delta_orch.protocol.action_json import parse_action, serialize_action
from delta_orch.protocol.actions import Action, CommitInfo
from delta_orch.protocol.deletion_vector import DeletionVector, relative_path
from delta_orch.protocol.types import COLLATIONS, STRING, StructField, StructType
from delta_orch.storage.local import LocalStore
from delta_orch.table.registry import FEATURES, TableFeature
from tests.certain import some
from tests.handmade import HandmadeTable
from tests.harness.feature_tables import MAKE
from tests.harness.fuzz.own_tables import OWN_TABLES, ROOT_PLACEHOLDER, ROWS, OwnTable
from tests.harness.golden import TABLE_KINDS, GoldenCase
from tests.harness.log_builder import LogBuilder
from tests.harness.log_model import LogModel


@dataclass(frozen=True)
class Content:
    """What a table holds.

    Attributes:
        commits: The actions of each version, those of commits that the log no longer has, too.
        rows: Those of the newest version, an Arrow table, or JSON objects where a column is a variant. None where
            reading them must fail.
        changes: Rows of the change feed by the first and the last version.
        error: The category of the error that reading raises, as golden cases name it.
    """

    commits: Sequence[Sequence[Action]]
    rows: Any = None
    changes: Mapping[tuple[int, int], pa.Table] = field(default_factory=dict)
    error: str | None = None


Write = Callable[[Path], Content]
"""Writes a table into a directory that does not exist yet."""


def made_cases(kinds: Collection[str] = TABLE_KINDS) -> list[GoldenCase]:
    """The cases of these kinds."""
    return [case for case in _CASES if case.kind in kinds]


# --- Sources


def _by_verbs(name: str) -> Write:
    def write(path: Path) -> Content:
        rows = MAKE[name](DeltaTable(path))
        return Content(_commits(path), rows)

    return write


def _own(name: str) -> Write:
    def write(path: Path) -> Content:
        store = LocalStore(path)
        log = LogBuilder(store)
        rows = OWN_TABLES[name](OwnTable(store, log))
        changes = {}
        if name == "change-feed":
            first = pa.table({"id": range(ROWS), "name": [f"name {i}" for i in range(ROWS)]})
            changes = {(1, 1): _changed(first, "insert", 1), (2, 2): _changed(first.slice(0, 3), "delete", 2)}
            changes[1, 2] = pa.concat_tables(changes.values())
        return Content(log.versions, rows, changes)

    return write


def _changed(rows: pa.Table, change: str, version: int) -> pa.Table:
    rows = rows.append_column("_change_type", pa.array([change] * rows.num_rows))
    return rows.append_column("_commit_version", pa.array([version] * rows.num_rows, pa.int64()))


def _under_another_name(feature: TableFeature, alias: str) -> Write:
    """A table whose log calls a feature by an older name."""

    def write(path: Path) -> Content:
        content = _by_verbs(feature.name)(path)
        for file in (path / "_delta_log").iterdir():
            file.write_text(file.read_text().replace(f'"{feature.name}"', f'"{alias}"'))
        return replace(content, commits=_commits(path))

    return write


def _commits(path: Path) -> list[list[Action]]:
    files = sorted(file for file in (path / "_delta_log").glob("*.json") if file.stem.isdigit())
    lines = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    return [[action for line in found if (action := parse_action(line)) is not None] for found in lines]


# --- Written action by action

_IDS = pa.table({"id": pa.array(range(10), pa.int64())})


def _table(path: Path, *reader_features: str) -> HandmadeTable:
    table = HandmadeTable(path)
    table.create(_IDS.schema, reader_features=reader_features)
    return table


def _marked(storage: str) -> Write:
    """Two files with a deletion vector each: inside the log, in a file below the table, or by an absolute path."""
    marks = ([0, 3, 9], [1])

    def write(path: Path) -> Content:
        table = _table(path, "deletionVectors")
        adds = [table.add(f"{number}.parquet", _IDS) for number in range(2)]
        table.commit(*adds)
        vectors = [DeletionVector(BitMap64(rows)) for rows in marks]
        inline_bytes = 1 << 20 if storage == "i" else 0
        descriptors = write_deletion_vectors(table.log.store, vectors, inline_bytes=inline_bytes)
        if storage == "p":
            places = [f"file://{ROOT_PLACEHOLDER}/{relative_path(found)}" for found in descriptors]
            descriptors = [
                replace(found, storage_type="p", path_or_inline_dv=place)
                for found, place in zip(descriptors, places, strict=True)
            ]
        marked = [replace(add, deletion_vector=found) for add, found in zip(adds, descriptors, strict=True)]
        table.commit(*(table.remove(add.path) for add in adds), *marked)
        left = [i for rows in marks for i in range(_IDS.num_rows) if i not in rows]
        return Content(table.log.versions, pa.table({"id": left}))

    return write


def _every_partition_type(path: Path) -> Content:
    """Those that `fuzz/own_tables` has not; of a path and a value with characters that paths encode."""
    values = {
        "p_byte": (pa.int8(), "-128", -128),
        "p_short": (pa.int16(), "32767", 32767),
        "p_long": (pa.int64(), "-9223372036854775808", -(1 << 63)),
        "p_double": (pa.float64(), "-Infinity", -math.inf),
        "p_ntz": (pa.timestamp("us"), "0001-01-01 00:00:00.000001", datetime(1, 1, 1, 0, 0, 0, 1)),
        "p_text": (pa.string(), "a/b %25=ü", "a/b %25=ü"),
    }
    columns = {name: pa.array([value] * _IDS.num_rows, of) for name, (of, _, value) in values.items()}
    rows = pa.table({"id": _IDS["id"], **columns})
    table = HandmadeTable(path)
    table.create(rows.schema, reader_features=["timestampNtz"], partition_by=list(values))
    partition = {name: text for name, (_, text, _) in values.items()}
    table.commit(table.add("p_text=a%2Fb %2525/x y.parquet", _IDS, partition_values=partition))
    return Content(table.log.versions, rows)


def _collated(path: Path) -> Content:
    field = StructField("name", STRING, True, {COLLATIONS: {"name": "spark.UTF8_LCASE"}})
    table = HandmadeTable(path)
    table.create(StructType((field,)), features=["collations"])
    rows = pa.table({"name": ["a", "A"]})
    table.commit(table.add("0.parquet", rows))
    return Content(table.log.versions, rows)


def _redirected(path: Path) -> Content:
    """Only writers are sent elsewhere."""
    table = HandmadeTable(path)
    table.create(_IDS.schema, features=["redirectWriterOnly"])
    table.commit(table.add("0.parquet", _IDS))
    return Content(table.log.versions, _IDS)


def _struct_statistics_only(path: Path) -> Content:
    """A checkpoint by the package itself: statistics and partition values as columns, no JSON."""
    table = DeltaTable(path)
    properties = {"delta.checkpoint.writeStatsAsJson": "false", "delta.checkpoint.writeStatsAsStruct": "true"}
    table.create([column("id", "bigint"), column("day", "date")], partition_by=["day"], properties=properties)
    rows = _IDS.append_column("day", pa.array([date(2024, 1, 1 + i % 2) for i in range(10)]))
    table.append(rows)
    table.checkpoint()
    return Content(_commits(path), rows)


def _left_by_others(path: Path) -> Content:
    """What readers pass over: a checkpoint of which a part is missing, a hint that is no JSON, an unknown action, an
    unknown feature for writers."""
    table = HandmadeTable(path)
    table.create(_IDS.schema, features=["fancyNewThing"])
    table.commit(table.add("0.parquet", _IDS))
    table.log.checkpoint(1, parts=3)
    store = table.log.store
    store.delete(f"_delta_log/{1:020d}.checkpoint.{2:010d}.{3:010d}.parquet")
    store.put("_delta_log/_last_checkpoint", b"{garbage")
    table.commit(table.add("1.parquet", _IDS))
    commit = path / "_delta_log" / f"{2:020d}.json"
    commit.write_text(commit.read_text() + '{"newAction":{"path":"x"}}\n')
    return Content(table.log.versions, pa.concat_tables([_IDS, _IDS]))


def _by_absolute_path(path: Path) -> Content:
    """As a shallow clone names the files of its source."""
    table = _table(path)
    table.commit(replace(table.add("0.parquet", _IDS), path=f"file://{ROOT_PLACEHOLDER}/0.parquet"))
    return Content(table.log.versions, _IDS)


# --- To be refused


def _unsupported(feature: str) -> Write:
    def write(path: Path) -> Content:
        return Content(_table(path, feature).log.versions, error="unsupported_feature")

    return write


def _damaged(error: str, damage: Callable[[HandmadeTable], object]) -> Write:
    """A table of three commits, damaged afterwards."""

    def write(path: Path) -> Content:
        table = _table(path, "deletionVectors")
        add = table.add("0.parquet", _IDS)
        table.commit(add)
        vectors = [DeletionVector(BitMap64([1, 2]))]
        (vector,) = write_deletion_vectors(table.log.store, vectors, inline_bytes=0)
        table.commit(table.remove(add.path), replace(add, deletion_vector=vector))
        damage(table)
        return Content(table.log.versions, error=error)

    return write


def _change_a_bit(table: HandmadeTable) -> None:
    (file,) = table.root.glob("deletion_vector_*.bin")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def _remove_vectors(table: HandmadeTable) -> None:
    (file,) = table.root.glob("deletion_vector_*.bin")
    file.unlink()


_DAMAGE: Mapping[str, tuple[str, Callable[[HandmadeTable], object]]] = {
    "line-is-no-json": ("corrupt_log", lambda table: table.log.store.put(f"_delta_log/{3:020d}.json", b'{"add":')),
    "commit-is-missing": ("corrupt_log", lambda table: table.log.delete_commits(2, 1)),
    "file-is-missing": ("missing_file", lambda table: (table.root / "0.parquet").unlink()),
    "vector-is-missing": ("missing_file", _remove_vectors),
    "vector-is-damaged": ("corrupt_deletion_vector", _change_a_bit),
}

# --- Variants alone, byte by byte (PROTOCOL, "Variant Data Type")

_NAMES = b"\x01\x01\x00\x01a"
_VARIANTS = (
    (_NAMES, b"\x02\x01\x00\x00\x02\x0c\x01", "object", '{"a":1}'),
    (_NAMES, b"\x03\x02\x00\x01\x02\x04\x08", "array", "[true,false]"),
    (_NAMES, b"\x09hi", "string", '"hi"'),
    (_NAMES, b"\x00", "null", "null"),
    None,
)


def _variants_of_each_kind(directory: Path) -> dict[str, Any]:
    rows: list[dict[str, str] | None] = []
    for number, row in enumerate(_VARIANTS):
        if row is None:
            rows.append(None)
            continue
        files = {"metadata": f"{number}.metadata.bin", "value": f"{number}.value.bin"}
        for file, data in zip(files.values(), row[:2], strict=True):
            (directory / file).write_bytes(data)
        rows.append({**files, "type": row[2], "json": row[3]})
    return {"must_error": False, "rows": rows}


def _two_values_in_one(directory: Path) -> dict[str, Any]:
    """Shredded: of `value` and `typed_value` only one may be there, if it is no object."""
    row = {"metadata": _NAMES, "value": b"\x0c\x01", "typed_value": 1}
    pq.write_table(pa.table({"v": [row]}), directory / "rows.parquet")
    return {"must_error": True, "data": "rows.parquet", "column": "v", "rows": []}


def _variant_case(name: str, write: Callable[[Path], dict[str, Any]], *features: str) -> GoldenCase:
    def locate() -> Path:
        directory = _home() / name
        directory.mkdir()
        (directory / "case.json").write_text(json.dumps(write(directory)))
        return directory

    return GoldenCase(name, "variant", features, locate)


# --- The cases


def _case(name: str, write: Write, *features: str, kind: str = "read") -> GoldenCase:
    return GoldenCase(f"made-{name}", kind, features, partial(_written, f"made-{name}", kind, features, write))


def _cases() -> Iterator[GoldenCase]:
    for name in MAKE:
        yield _case(f"feature-{name}", _by_verbs(name), f"table-feature:{name}")
    for feature in (feature for feature in FEATURES if feature.reader):
        names = (feature.name, *feature.aliases)
        if feature.reads:
            for alias in feature.aliases:
                yield _case(f"alias-{alias}", _under_another_name(feature, alias), f"table-feature:{alias}")
            continue
        for name in names:
            labels = (f"table-feature:{name}", "error:unsupported_feature")
            yield _case(f"refused-{name}", _unsupported(name), *labels, kind="error")
    for name in OWN_TABLES:
        kind = "cdf" if name == "change-feed" else "read"
        yield _case(name, _own(name), *_OWN_LABELS.get(name, ()), kind=kind)
    for storage, label in (("i", "dv-inline"), ("u", "dv-relative"), ("p", "dv-absolute")):
        yield _case(label, _marked(storage), label, "table-feature:deletionVectors")
    yield _case("partition-types", _every_partition_type, "path-encoded", "table-feature:timestampNtz")
    yield _case("collations", _collated, "table-feature:collations")
    yield _case("redirected", _redirected, "table-feature:redirectWriterOnly")
    yield _case("struct-statistics", _struct_statistics_only, "checkpoint-v1", "struct-stats-only")
    yield _case("left-by-others", _left_by_others, "incomplete-multipart", "last-checkpoint-garbage", "unknown-action")
    yield _case("absolute-path", _by_absolute_path, "path-absolute")
    yield _case("refused-unknown", _unsupported("fancyNewThing"), "error:unsupported_feature", kind="error")
    yield _variant_case("made-variants-of-each-kind", _variants_of_each_kind, "variant-unshredded")
    yield _variant_case("made-two-variants-in-one", _two_values_in_one, "variant-shredded", "error:invalid_variant")
    for name, (error, damage) in _DAMAGE.items():
        features = ["table-feature:deletionVectors"] if name.startswith("vector") else []
        yield _case(f"damaged-{name}", _damaged(error, damage), *features, f"error:{error}", kind="error")


_OWN_LABELS: Mapping[str, Sequence[str]] = {
    "checkpoint-v1": ["checkpoint-v1"],
    "checkpoint-parts": ["checkpoint-multipart", "log-cleaned-up"],
    "checkpoint-v2-json": ["checkpoint-v2-json", "checkpoint-sidecars", "table-feature:v2Checkpoint"],
    "checkpoint-v2-parquet": ["checkpoint-v2-parquet", "checkpoint-sidecars", "table-feature:v2Checkpoint"],
    "checkpoint-v2-inline": ["checkpoint-v2-classic-name", "log-cleaned-up", "table-feature:v2Checkpoint"],
    "deletion-vectors": ["dv-inline", "dv-relative", "dv-absolute", "table-feature:deletionVectors"],
    "change-feed": ["cdf", "cdf-with-cdc-files"],
    "mapped-name": ["column-mapping-name", "table-feature:columnMapping"],
    "mapped-id": ["column-mapping-id", "table-feature:columnMapping"],
    "widened": ["type-widening", "table-feature:typeWidening"],
    "variants": ["variant", "variant-shredded-files", "table-feature:variantType"],
    "checksums": ["version-checksum", "in-commit-timestamp", "table-feature:inCommitTimestamp"],
    "row-tracking": ["row-tracking", "table-feature:rowTracking"],
    "compactions": ["compacted-log", "version-checksum"],
}


# --- Their files


@cache
def _home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="delta-orch-tables-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


def _written(name: str, kind: str, features: Sequence[str], write: Write) -> Path:
    """The directory of a case, as `GoldenCase` reads it."""
    directory = _home() / name
    (directory / "expected").mkdir(parents=True)
    content = write(directory / "table")
    definition = {"name": name, "kind": kind, "features": features, "expect": _expected(directory, content)}
    if any(ROOT_PLACEHOLDER in file.read_text() for file in (directory / "table/_delta_log").glob("*.json")):
        definition["substitute"] = {ROOT_PLACEHOLDER: "<absolute path of the table folder>"}
    (directory / "case.json").write_text(json.dumps(definition))
    return directory


def _expected(directory: Path, content: Content) -> dict[str, Any]:
    if content.error is not None:
        return {"error": content.error}
    log = directory / "table/_delta_log"
    newest = len(content.commits) - 1
    expect = _state(content.commits, newest)
    rows = some(content.rows)
    expect["total_rows"] = len(rows)
    expect["rows"] = "expected/latest.parquet" if isinstance(rows, pa.Table) else "expected/latest.jsonl"
    if isinstance(rows, pa.Table):
        pq.write_table(rows, directory / expect["rows"])
    else:
        (directory / expect["rows"]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    expect["cdf"] = {}
    for (first, last), changes in content.changes.items():
        file = f"expected/changes-{first}-{last}.parquet"
        pq.write_table(changes, directory / file)
        expect["cdf"][f"{first}_{last}"] = {"from": first, "to": last, "rows": file, "total_rows": changes.num_rows}
    if (log / f"{0:020d}.json").exists():
        expect["versions"] = {str(version): _state(content.commits, version) for version in range(newest)}
    expect["version_errors"] = {str(newest + 1): "missing_version"}
    expect["version_checksums"] = {str(int(file.stem)): _checksum(content, file) for file in log.glob("*.crc")}
    return expect


def _state(commits: Sequence[Sequence[Action]], version: int) -> dict[str, Any]:
    """What the log says at a version."""
    model = LogModel()
    for actions in commits[: version + 1]:
        model.apply(actions)
    metadata = some(model.metadata)
    files = [{"path": unquote(add.path), "partition_values": dict(add.partition_values)} for add in model.adds.values()]
    return {
        "version": version,
        "num_files": len(model.adds),
        "total_bytes": sum(add.size for add in model.adds.values()),
        "metadata_id": metadata.id,
        "schema": metadata.schema_string,
        "partition_columns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "protocol": json.loads(serialize_action(some(model.protocol)))["protocol"],
        "txn": {app_id: txn.version for app_id, txn in model.txns.items()},
        "domain_metadata": {
            name: domain.configuration for name, domain in model.domain_metadata.items() if not domain.removed
        },
        # Where the table is decides how an absolute path reads.
        **({} if ROOT_PLACEHOLDER in str(files) else {"files": files}),
    }


def _checksum(content: Content, file: Path) -> dict[str, Any]:
    state = _state(content.commits, int(file.stem))
    info = next((action for action in content.commits[int(file.stem)] if isinstance(action, CommitInfo)), None)
    return {
        "tableSizeBytes": state["total_bytes"],
        "numFiles": state["num_files"],
        "numMetadata": 1,
        "numProtocol": 1,
        "inCommitTimestampOpt": info and info.values.get("inCommitTimestamp"),
    }


_CASES = list(_cases())
