"""Golden tables: Delta tables written by other implementations, with what a correct reader must return.

A collection is a directory with `index.json` (a list of `name`, `kind`, `path`); each case has a `case.json` with its
`expect`, the table, and the expected rows. Kinds `read`, `cdf`, `log` and `error` are run here, `variant` in
`golden_variant`. No case is named here and none is excused: what a case expects is read, and only what it says must
be refused is.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.engines.base import Engine
from delta_orch.errors import (
    ChecksumMismatchError,
    CorruptDeletionVectorError,
    CorruptLogError,
    DeltaError,
    InvalidRequestError,
    InvalidVariantError,
    MissingFileError,
    TableNotFoundError,
    UnsupportedError,
    VersionNotFoundError,
)
from delta_orch.log.read.checksum_file import read_version_checksum
from delta_orch.protocol.paths import decode_path
from tests.harness.row_multiset import ensure_same_rows
from tests.harness.variant_rows import json_rows

TABLE_KINDS = ("read", "cdf", "log", "error")
ALL_KINDS = (*TABLE_KINDS, "variant")

_ERRORS: Mapping[str, type[DeltaError]] = {
    "unsupported_feature": UnsupportedError,
    "corrupt_log": CorruptLogError,
    "missing_file": MissingFileError,
    "corrupt_deletion_vector": CorruptDeletionVectorError,
    "invalid_variant": InvalidVariantError,
    "no_table": TableNotFoundError,
    "missing_version": VersionNotFoundError,
    "cdf_not_enabled": InvalidRequestError,
}


READ_SINCE = {
    "krs-table-with-geo": "struct<geom:geometry(OGC:CRS84),geog:geography(OGC:CRS84, spherical)>",
}
"""Tables without rows whose cases ask for an error only because the protocol's text then had no such types."""


class GoldenMismatch(AssertionError):
    """The reader does not do what the case demands."""


@dataclass(frozen=True)
class GoldenCase:
    """One case, its table untouched on disk. `locate` gives the case's directory, and is called at its first use."""

    name: str
    kind: str
    features: tuple[str, ...]
    locate: Callable[[], Path]

    @cached_property
    def directory(self) -> Path:
        return self.locate()

    @cached_property
    def definition(self) -> dict[str, Any]:
        """The content of `case.json`."""
        return dict(json.loads((self.directory / "case.json").read_bytes()))

    @property
    def expect(self) -> dict[str, Any]:
        return dict(self.definition["expect"])

    def expected_rows(self, file: str) -> pa.Table:
        """The rows of a Parquet file the case names."""
        return pq.read_table(self.directory / file)

    def expected_json_rows(self, file: str) -> list[dict[str, Any]]:
        """The rows of a file of JSON lines, which a case with variants names."""
        data = (self.directory / file).read_bytes()
        return [json.loads(line) for line in (gzip.decompress(data) if file.endswith(".gz") else data).splitlines()]


def load_cases(root: Path, kinds: Collection[str] = TABLE_KINDS) -> list[GoldenCase]:
    """The cases of these kinds in a collection, by name. An empty list where there is no collection at `root`."""
    if not (root / "index.json").is_file():
        return []
    entries = json.loads((root / "index.json").read_bytes())
    cases = [
        GoldenCase(e["name"], e["kind"], tuple(e["features"]), partial(Path, root, e["path"]))
        for e in entries
        if e["kind"] in kinds
    ]
    return sorted(cases, key=lambda case: case.name)


def prepare_table(case: GoldenCase, workspace: Path) -> Path:
    """The case's table ready to be read: in place, or copied to `workspace` where its log holds placeholders."""
    placeholders = case.definition.get("substitute")
    if not placeholders:
        return case.directory / "table"
    copy = workspace / case.name
    shutil.copytree(case.directory / "table", copy)
    location = str(copy.resolve())
    for commit in (copy / "_delta_log").glob("*.json"):
        text = commit.read_text()
        for placeholder, meaning in placeholders.items():
            value = meaning.replace("<absolute path of the table folder, percent-encoded>", quote(location))
            text = text.replace(placeholder, value.replace("<absolute path of the table folder>", location))
        commit.write_text(text)
    return copy


def check_case(case: GoldenCase, workspace: Path, engine: Engine) -> None:
    """Read the case with an engine and compare everything it says.

    Raises:
        GoldenMismatch: Something differs; the message says what.
    """
    table = DeltaTable(prepare_table(case, workspace))
    if case.name in READ_SINCE:
        _ensure_equal(f"{case.name}: schema", str(table.snapshot().schema), READ_SINCE[case.name])
        _ensure_equal(f"{case.name}: number of rows", _rows(table.snapshot(), engine).num_rows, 0)
        return
    if case.kind == "error":
        _check_error(case, table, engine)
        return
    expect = case.expect
    states = [(None, expect), *((int(v), state) for v, state in (expect.get("versions") or {}).items())]
    for version, state in states:
        _check_version(case, table, version, state, engine)
    for version, category in (expect.get("version_errors") or {}).items():
        _must_raise(case, category, f"version {version}", lambda v=int(version): table.snapshot(version=v))
    _check_history(case, table, expect.get("history"))
    _check_checksums(case, table)
    _check_changes(case, table, expect, engine)


def _check_version(
    case: GoldenCase, table: DeltaTable, version: int | None, state: Mapping[str, Any], engine: Engine
) -> None:
    what = f"{case.name} at {'the newest version' if version is None else f'version {version}'}"
    snapshot = table.snapshot(version=version)
    _check_state(what, snapshot, state, case.expect.get("txn_after_retention"))
    if state.get("read_error"):
        _must_raise(case, state["read_error"], f"reading {what}", lambda: _rows(snapshot, engine))
    if state.get("rows") not in (None, "not compared"):
        rows = _rows(snapshot, engine)
        _ensure_equal(f"{what}: number of rows", rows.num_rows, state["total_rows"])
        if state["rows"].endswith(".parquet"):
            _ensure_rows(what, rows, case.expected_rows(state["rows"]))
        else:
            expected = sorted(map(_canonical, case.expected_json_rows(state["rows"])))
            _ensure_equal(what, sorted(map(_canonical, json_rows(rows, snapshot.schema))), expected)


def _canonical(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def _rows(snapshot: TableSnapshot, engine: Engine) -> pa.Table:
    return engine.to_arrow(snapshot.scan().to_relation(engine))


def _check_state(what: str, snapshot: TableSnapshot, state: Mapping[str, Any], retained: Any) -> None:
    metadata, protocol = snapshot.metadata, snapshot.protocol
    actual = {
        "version": snapshot.version,
        "num_files": snapshot.num_files,
        "total_bytes": snapshot.size_bytes,
        "metadata_id": metadata.id,
        "schema": json.loads(metadata.schema_string),
        "partition_columns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "protocol": _comparable_protocol(
            protocol.min_reader_version,
            protocol.min_writer_version,
            protocol.reader_features,
            protocol.writer_features,
        ),
        "txn": dict(snapshot.txns),
        "domain_metadata": dict(snapshot.domain_metadata),
    }
    given = state["protocol"]
    wanted = {
        **{key: state[key] for key in actual if key in state},
        "schema": json.loads(state["schema"]),
        "protocol": _comparable_protocol(
            given["minReaderVersion"],
            given["minWriterVersion"],
            given.get("readerFeatures"),
            given.get("writerFeatures"),
        ),
        "txn": {app_id: version for app_id, version in state["txn"].items() if retained is None or app_id in retained},
    }
    for key, value in wanted.items():
        _ensure_equal(f"{what}: {key}", actual[key], value)
    if "files" in state:
        _ensure_equal(f"{what}: files", _listed_files(snapshot), _sorted_files(state["files"]))


def _comparable_protocol(reader: int, writer: int, reader_features: Any, writer_features: Any) -> tuple[Any, ...]:
    # Written or not, an empty list of features says the same.
    return reader, writer, sorted(reader_features or ()), sorted(writer_features or ())


def _listed_files(snapshot: TableSnapshot) -> list[tuple[str, dict[str, str | None]]]:
    rows = snapshot.files(["path", "partition_values"]).to_pylist()
    return sorted(((decode_path(r["path"]), dict(r["partition_values"] or ())) for r in rows), key=lambda f: f[0])


def _sorted_files(files: list[dict[str, Any]]) -> list[tuple[str, dict[str, str | None]]]:
    return sorted(((f["path"], f["partition_values"]) for f in files), key=lambda f: f[0])


def _check_history(case: GoldenCase, table: DeltaTable, history: list[dict[str, Any]] | None) -> None:
    if not history:
        return
    actual = {entry.version: entry for entry in table.history()}
    for expected in history:
        entry = actual.get(expected["version"])
        if entry is None:
            raise GoldenMismatch(f"{case.name}: version {expected['version']} is missing in the history")
        what = f"{case.name}: history of version {entry.version}"
        _ensure_equal(f"{what}: operation", entry.operation, expected["operation"])
        recorded = (entry.commit_info or {}).get("timestamp")
        if expected["timestamp"] not in (recorded, entry.timestamp_ms):
            raise GoldenMismatch(f"{what}: timestamp {recorded}, expected {expected['timestamp']}")


def _check_checksums(case: GoldenCase, table: DeltaTable) -> None:
    """Every version checksum says what the case says, and agrees with the replayed state; where the case itself says
    that it does not (the file belongs to another log), validation must tell."""
    states = {**(case.expect.get("versions") or {}), str(case.expect["version"]): case.expect}
    for version, recorded in (case.expect.get("version_checksums") or {}).items():
        what = f"{case.name}: checksum of version {version}"
        checksum = read_version_checksum(table.store, int(version))
        actual = {
            "tableSizeBytes": checksum and checksum.table_size_bytes,
            "numFiles": checksum and checksum.num_files,
            "numMetadata": checksum and checksum.num_metadata,
            "numProtocol": checksum and checksum.num_protocol,
            "inCommitTimestampOpt": checksum and checksum.in_commit_timestamp_ms,
        }
        _ensure_equal(what, {key: actual[key] for key in recorded}, recorded)
        snapshot = table.snapshot(version=int(version))
        state = states.get(version, {})
        sizes = {"numFiles": state.get("num_files"), "tableSizeBytes": state.get("total_bytes")}
        wrong = {key for key, value in sizes.items() if value is not None and value != recorded[key]}
        found = _mismatching_fields(snapshot)
        _ensure_equal(f"{what}: fields that disagree", found & wrong if wrong else found, wrong)


def _mismatching_fields(snapshot: TableSnapshot) -> frozenset[str]:
    try:
        snapshot.validate()
    except ChecksumMismatchError as e:
        return frozenset(mismatch.field for mismatch in e.context["mismatches"])
    return frozenset()


def _check_changes(case: GoldenCase, table: DeltaTable, expect: Mapping[str, Any], engine: Engine) -> None:
    for feed in (expect.get("cdf") or {}).values():
        start, end = feed["from"], feed["to"]
        what = f"{case.name}: changes of versions {start} to {end}"
        changes = table.changes(starting_version=start, ending_version=end, require_change_data_feed=True)
        rows = engine.to_arrow(changes.to_relation(engine))
        _ensure_equal(f"{what}: number of rows", rows.num_rows, feed["total_rows"])
        expected = case.expected_rows(feed["rows"])
        compared = [name for name in rows.column_names if name != "_commit_timestamp"]
        _ensure_rows(what, rows.select(compared), expected.select([n for n in expected.column_names if n in compared]))
    error = expect.get("cdf_error")
    if error:
        _must_raise(
            case,
            error["error"],
            f"changes from version {error['from']}",
            lambda: table.changes(starting_version=error["from"], require_change_data_feed=True),
        )


def _check_error(case: GoldenCase, table: DeltaTable, engine: Engine) -> None:
    def read_all() -> None:
        _rows(table.snapshot(), engine)

    _must_raise(case, case.expect["error"], "reading", read_all)
    for version, state in (case.expect.get("versions_that_load") or {}).items():
        _check_version(case, table, int(version), state, engine)


def _must_raise(case: GoldenCase, category: str, what: str, action: Any) -> None:
    expected = _ERRORS[category]
    try:
        action()
    except expected:
        return
    except DeltaError as e:
        raise GoldenMismatch(
            f"{case.name}: {what} raised {type(e).__name__} instead of {expected.__name__}: {e}"
        ) from e
    raise GoldenMismatch(f"{case.name}: {what} succeeded, {expected.__name__} was expected")


def _ensure_equal(what: str, actual: Any, expected: Any) -> None:
    if actual != expected:
        raise GoldenMismatch(f"{what}:\n  is       {actual!r}\n  expected {expected!r}")


def _ensure_rows(what: str, actual: pa.Table, expected: pa.Table) -> None:
    try:
        ensure_same_rows(actual, expected)
    except AssertionError as e:
        raise GoldenMismatch(f"{what}: {e}") from None
