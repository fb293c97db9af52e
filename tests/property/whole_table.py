"""A table and a plain model of it, side by side, under any sequence of verbs and upkeep: after each step the table read
anew, the table that was followed and the model agree, and `deltalake` with them wherever it can read the table."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delta_orch import DeltaTable
from delta_orch.errors import ConstraintViolationError, MissingFileError, VersionNotFoundError
from delta_orch.protocol.paths import decode_path

HALF_A_YEAR_S = 180 * 86_400
MORE = ("more", "Mehr")
TRAVELED = 4
"""How many older versions are read after each step."""
days = st.sampled_from(["a", "b%/", None])
pairs = st.lists(st.tuples(days, st.integers(0, 20)), max_size=5)
Row = dict[str, Any]


class WholeTable(RuleBasedStateMachine):
    """`rows` holds every row, with a value for each of `columns`; columns beside `day` and `id` are text. A table
    `for_everybody` has no feature that `deltalake` does not read."""

    @initialize(
        partitioned=st.booleans(),
        mapped=st.booleans(),
        for_everybody=st.booleans(),
        interval=st.sampled_from(["3", "100"]),
    )
    def create(self, partitioned: bool, mapped: bool, for_everybody: bool, interval: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.table = DeltaTable(self.folder / "t")
        self.columns = ["day", "id"]
        self.partitioned, self.for_everybody = partitioned, for_everybody
        self.mapped = mapped and not for_everybody
        self.rows: list[Row] = []
        self.properties: dict[str, str] = {}
        self.domains: dict[str, str] = {}
        self.txns: dict[str, int] = {}
        self.least_id: int | None = None
        self.needs_day = False
        self.has_v2 = False
        self.has_domains = True
        self.history: dict[int, tuple[list[str], Counter[str]]] = {}
        self.first_kept = 0
        properties = {"delta.checkpointInterval": interval, "delta.feature.domainMetadata": "supported"}
        if self.mapped:
            properties["delta.columnMapping.mode"] = "name"
        self.table.create(self.data([])[0].schema, partition_by=["day"] if partitioned else None, properties=properties)
        self.version = 0

    def teardown(self) -> None:
        if hasattr(self, "version"):
            report = self.table.fsck(check_files=True)
            assert [p for p in report.problems if p.severity == "error"] == []
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)

    def data(self, given: list[tuple[str | None, int]], also: str | None = None) -> tuple[pa.Table, list[Row]]:
        columns = [*self.columns, *([also] if also else [])]
        others = [c for c in columns if c not in ("day", "id")]
        rows = [{"day": d, "id": i, **{c: f"{c} {i}" for c in others}} for d, i in given]
        return self.as_table(rows, columns), rows

    @staticmethod
    def as_table(rows: list[Row], columns: list[str]) -> pa.Table:
        schema = pa.schema([(c, pa.int64() if c == "id" else pa.string()) for c in columns])
        return pa.Table.from_pylist(rows, schema)

    def breaks_constraint(self, rows: list[Row]) -> bool:
        if self.needs_day and any(row["day"] is None for row in rows):
            return True
        return self.least_id is not None and any(row["id"] < self.least_id for row in rows)

    def write(self, verb: Any, data: pa.Table, new: list[Row], kept: list[Row], **arguments: Any) -> None:
        if self.breaks_constraint(new):
            with pytest.raises(ConstraintViolationError):
                verb(data, **arguments)
            return
        result = verb(data, **arguments)
        if new or len(kept) < len(self.rows) or "txn" in arguments:
            self.version += 1
        else:
            # It commits nothing, unless the schema changes, or files that might hold such rows are rewritten.
            assert result.skipped == (self.table.version() == self.version)
            self.version = self.table.version()
        assert result.version == self.version
        self.rows = kept + new

    # Rows

    @rule(given=pairs)
    def append(self, given: list[tuple[str | None, int]]) -> None:
        self.write(self.table.append, *self.data(given), self.rows)

    @rule(given=pairs, version=st.integers(0, 4))
    def append_once(self, given: list[tuple[str | None, int]], version: int) -> None:
        if self.txns.get("app", -1) >= version:
            assert self.table.append(self.data(given)[0], txn=("app", version)).skipped
            return
        data, rows = self.data(given)
        self.write(self.table.append, data, rows, self.rows, txn=("app", version))
        if not self.breaks_constraint(rows):
            self.txns["app"] = version

    @rule(given=pairs, name=st.sampled_from(MORE))
    def append_with_a_new_column(self, given: list[tuple[str | None, int]], name: str) -> None:
        if name in self.columns:
            return
        data, rows = self.data(given, name)
        if self.breaks_constraint(rows):
            return
        self.write(self.table.append, data, rows, self.rows, schema_mode="merge")
        self.columns.append(name)
        for row in self.rows:
            row.setdefault(name, None)

    @rule(given=pairs)
    def overwrite(self, given: list[tuple[str | None, int]]) -> None:
        self.write(self.table.overwrite, *self.data(given), [])

    @rule(given=pairs, low=st.integers(0, 20), width=st.integers(0, 8))
    def replace_ids(self, given: list[tuple[str | None, int]], low: int, width: int) -> None:
        high = low + width
        kept = [row for row in self.rows if not low <= row["id"] <= high]
        data, rows = self.data([(d, low + i % (width + 1)) for d, i in given])
        self.write(self.table.overwrite, data, rows, kept, replace_where=f"id BETWEEN {low} AND {high}")

    @precondition(lambda self: self.partitioned)
    @rule(given=pairs)
    def replace_partitions(self, given: list[tuple[str | None, int]]) -> None:
        touched = {d for d, _ in given}
        kept = [row for row in self.rows if row["day"] not in touched]
        self.write(self.table.overwrite, *self.data(given), kept, partition_overwrite_mode="dynamic")

    # The table's definition

    @rule(name=st.sampled_from(MORE))
    def add_column(self, name: str) -> None:
        if name not in self.columns:
            self.committed(self.table.alter().add_column(name, "string").commit())
            self.columns.append(name)
            self.rows = [{**row, name: None} for row in self.rows]

    @precondition(lambda self: self.mapped and len(self.columns) > 2)
    @rule()
    def drop_column(self) -> None:
        name = next(c for c in reversed(self.columns) if c not in ("day", "id"))
        self.columns.remove(name)
        self.committed(self.table.alter().drop_columns(name).commit())
        self.rows = [{c: v for c, v in row.items() if c != name} for row in self.rows]

    @rule(key=st.sampled_from("xy"), value=st.sampled_from("12"))
    def set_property(self, key: str, value: str) -> None:
        self.committed(self.table.alter().set_properties({key: value}).commit(), self.properties.get(key) != value)
        self.properties[key] = value

    @rule(
        name=st.sampled_from(
            [
                "delta.enableChangeDataFeed",
                "delta.enableRowTracking",
                "delta.enableInCommitTimestamps",
                "delta.enableDeletionVectors",
            ]
        )
    )
    def enable(self, name: str) -> None:
        if name == "delta.enableDeletionVectors" and self.for_everybody:
            return
        before = self.version
        self.table.alter().set_properties({name: "true"}).commit()
        # Row tracking on rows that are there takes commits before.
        self.version = self.table.version()
        assert self.version <= before + (3 if name == "delta.enableRowTracking" else 1)

    @precondition(lambda self: not (self.has_v2 or self.for_everybody))
    @rule()
    def enable_v2_checkpoints(self) -> None:
        self.committed(self.table.alter().set_properties({"delta.checkpointPolicy": "v2"}).commit())
        self.has_v2 = True

    @precondition(lambda self: self.least_id is None)
    @rule(least=st.integers(0, 5))
    def constrain(self, least: int) -> None:
        alteration = self.table.alter().add_constraint("least", f"id >= {least}")
        if any(row["id"] < least for row in self.rows):
            with pytest.raises(ConstraintViolationError):
                alteration.commit()
            return
        self.committed(alteration.commit())
        self.least_id = least

    @precondition(lambda self: self.least_id is not None)
    @rule()
    def release(self) -> None:
        self.committed(self.table.alter().drop_constraint("least").commit())
        self.least_id = None

    @precondition(lambda self: self.has_domains)
    @rule(name=st.sampled_from("pq"), text=st.sampled_from(["", 'ü"', None]))
    def domain(self, name: str, text: str | None) -> None:
        if text is None:
            known = self.domains.pop(name, None)
            self.committed(self.table.remove_domain_metadata(name), known is not None)
            return
        # The same words again are a commit, too, or none: what counts is what is there.
        self.table.set_domain_metadata(name, text)
        self.version = self.table.version()
        self.domains[name] = text

    # Upkeep

    @rule(size=st.sampled_from([None, 1]))
    def optimize(self, size: int | None) -> None:
        self.version += not self.table.optimize(target_file_size_bytes=size).skipped

    @rule()
    def vacuum(self) -> None:
        self.first_kept = self.version
        if self.table.vacuum(retention_hours=0, enforce_retention=False).paths:
            self.version += 2

    @rule(policy=st.sampled_from(["classic", "v2", None]), v2_format=st.sampled_from(["json", "parquet"]))
    def checkpoint(self, policy: Any, v2_format: Any) -> None:
        chosen = policy if self.has_v2 or policy != "v2" else None
        assert self.table.checkpoint(chosen, v2_format) == self.version

    @rule()
    def compact_log(self) -> None:
        if len(self.table.log._list_all().commits) > 1 and self.version > 0:
            oldest = min(self.table.log._list_all().commits)
            self.table.compact_log(oldest, self.version)

    @rule()
    def write_checksum(self) -> None:
        self.table.write_checksum()
        assert self.table.snapshot().validate().checked

    @rule()
    def clean_up_after_half_a_year(self) -> None:
        then = time.time() - HALF_A_YEAR_S
        for file in (self.folder / "t" / "_delta_log").rglob("*"):
            if file.is_file():
                os.utime(file, (then, then))
        self.table.cleanup_log()
        self.first_kept = self.version

    def committed(self, result: Any, is_new: bool = True) -> None:
        assert result.skipped is not is_new
        self.version += is_new

    # What must hold

    @invariant()
    def all_agree(self) -> None:
        if not hasattr(self, "version"):
            return
        expected = counted(self.rows)
        fresh = DeltaTable(self.folder / "t")
        for table in (self.table, fresh):
            snapshot = table.snapshot()
            assert snapshot.version == self.version
            assert [field.name for field in snapshot.schema] == self.columns
            assert counted(snapshot.scan().to_arrow().to_pylist()) == expected
            assert dict(snapshot.txns) == self.txns
            assert {k: v for k, v in snapshot.domain_metadata.items() if k in "pq"} == self.domains
            configuration = snapshot.metadata.configuration
            assert {k: v for k, v in configuration.items() if k in "xy"} == self.properties
        assert paths(self.table) == paths(fresh)
        if self.for_everybody:
            referee = deltalake.DeltaTable(str(self.folder / "t"))
            assert referee.version() == self.version
            assert counted(pa.table(referee.to_pyarrow_table()).to_pylist()) == expected

    @invariant()
    def older_versions_are_as_they_were(self) -> None:
        if not hasattr(self, "version"):
            return
        self.history[self.version] = (list(self.columns), counted(self.rows))
        for version in sorted(self.history)[-1 - TRAVELED : -1]:
            columns, expected = self.history[version]
            try:
                snapshot = DeltaTable(self.folder / "t").snapshot(version)
                rows = snapshot.scan().to_arrow().to_pylist()
            except (MissingFileError, VersionNotFoundError):
                assert version < self.first_kept
                continue
            assert [field.name for field in snapshot.schema] == columns
            assert counted(rows) == expected


def counted(rows: list[Row]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


def paths(table: DeltaTable) -> set[str]:
    return {decode_path(path) for path in table.snapshot().files(["path"])["path"].to_pylist()}
