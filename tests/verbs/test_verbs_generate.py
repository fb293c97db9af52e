"""Symlink manifests: lists of files for engines that read no Delta log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import InvalidRequestError, UnsupportedFeatureError

KEPT = {"delta.compatibility.symlinkFormatManifest.enabled": "true"}


def manifests(table: DeltaTable) -> dict[str, list[str]]:
    """Every manifest, with the files that it names, as a reader of the file system finds them."""
    root = Path(table.store.data_filesystem()[1]) / "_symlink_format_manifest"
    found = {}
    for manifest in root.rglob("manifest"):
        lines = manifest.read_text().splitlines()
        assert all(line.startswith("file:/") and Path(line.removeprefix("file:")).is_file() for line in lines)
        found[str(manifest.parent.relative_to(root))] = lines
    return found


def rows(table: DeltaTable) -> int:
    """How many rows a reader of the manifests finds."""
    return sum(pq.read_metadata(line.removeprefix("file:")).num_rows for m in manifests(table).values() for line in m)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "a b%20é")


def test_one_manifest_a_partition(table: DeltaTable, days: Any) -> None:
    table.append(days(("a b%/=é", 1), (None, 2)), partition_by=["day"])
    table.append(days(("a b%/=é", 3), ("c", 4)))
    assert len(table.generate()) == 3
    # As Delta on Spark names them.
    assert {name: len(lines) for name, lines in manifests(table).items()} == {
        "day=a b%25%2F%3Dé": 2, "day=__HIVE_DEFAULT_PARTITION__": 1, "day=c": 1,
    }  # fmt: skip
    table.delete("day IS NULL")
    assert len(manifests(table)) == 3
    table.generate()
    assert len(manifests(table)) == 2 and rows(table) == 3
    table.vacuum(0, enforce_retention=False)
    assert rows(table) == 3


def test_a_table_without_partitions_or_rows_has_one(table: DeltaTable) -> None:
    table.create(pa.schema([("id", pa.int64())]))
    assert table.generate("symlink_format_manifest") == ("_symlink_format_manifest/manifest",)
    assert manifests(table) == {".": []}
    table.append(pa.table({"id": [1]}))
    table.generate()
    assert rows(table) == 1


def test_commits_keep_them_where_the_table_says_so(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1), ("b", 2), (None, 3)), partition_by=["day"])
    assert manifests(table) == {}
    table.alter().set_properties(KEPT).commit()
    assert rows(table) == 3
    table.append(days(("a", 4), ("d", 5)))
    table.delete("day = 'b'")
    table.update({"id": "id + 1"}, "id = 4")
    assert (set(manifests(table)), rows(table)) == ({"day=a", "day=d", "day=__HIVE_DEFAULT_PARTITION__"}, 4)
    table.optimize()
    table.restore(version=1)
    assert (set(manifests(table)), rows(table)) == ({"day=a", "day=b", "day=__HIVE_DEFAULT_PARTITION__"}, 3)
    table.overwrite(pa.table({"n": [1]}), schema_mode="overwrite", partition_by=[])
    assert (set(manifests(table)), rows(table)) == ({"."}, 1)
    table.alter().unset_properties(*KEPT).commit()
    table.append(pa.table({"n": [2]}))
    assert rows(table) == 1


@pytest.mark.parametrize(
    "properties", [{"delta.enableDeletionVectors": "true"}, {"delta.columnMapping.mode": "name"}], ids=str
)
def test_what_they_would_tell_wrong_is_refused(table: DeltaTable, days: Any, properties: Any) -> None:
    with pytest.raises(InvalidRequestError, match="symlink"):
        table.append(days(("a", 1)), properties={**KEPT, **properties})
    assert not table.exists()
    table.append(days(("a", 1), ("a", 2)), properties=properties)
    table.delete("id = 1")
    with pytest.raises(UnsupportedFeatureError):
        table.generate()
    with pytest.raises(InvalidRequestError, match="symlink"):
        table.alter().set_properties(KEPT).commit()
    with pytest.raises(InvalidRequestError, match="mode"):
        table.generate("other")
    assert manifests(table) == {} and table.version() == 1
