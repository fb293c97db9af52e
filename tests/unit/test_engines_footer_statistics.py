"""Statistics from Parquet footers: every bound valid, or left out."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch.engines.base import StatisticsPolicy
from delta_orch.engines.footer_statistics import (
    read_footer_statistics,
    round_up_prefix,
    serialize_footer_statistics,
    statistics_columns,
)
from delta_orch.errors import MissingFileError, StorageError
from delta_orch.protocol.arrow_building import schema_from_arrow

UTC = pa.timestamp("us", "UTC")


def stats_of(tmp_path: Path, table: pa.Table, policy: StatisticsPolicy | None = None, **kwargs: Any) -> dict[str, Any]:
    path = tmp_path / "f.parquet"
    pq.write_table(table, path, row_group_size=kwargs.pop("row_group_size", None))
    found = read_footer_statistics(
        pafs.LocalFileSystem(),
        [str(path)],
        statistics_columns(schema_from_arrow(table.schema), policy or StatisticsPolicy()),
        **kwargs,
    )
    assert found["size"][0].as_py() == path.stat().st_size
    assert found["modification_time"][0].as_py() == path.stat().st_mtime_ns // 1_000_000
    assert found["num_records"][0].as_py() == table.num_rows
    stats: dict[str, Any] = json.loads(found["stats"][0].as_py(), parse_float=decimal.Decimal)
    return stats


def test_integers_strings_and_null_counts(tmp_path: Path) -> None:
    table = pa.table(
        {"id": pa.array([3, 1, None], pa.int64()), "b": pa.array([1, 2, 3], pa.int8()), "s": ["b", "é", "a"]}
    )
    assert stats_of(tmp_path, table) == {
        "numRecords": 3,
        "minValues": {"id": 1, "b": 1, "s": "a"},
        "maxValues": {"id": 3, "b": 3, "s": "é"},
        "nullCount": {"id": 1, "b": 0, "s": 0},
    }


def test_bounds_over_several_row_groups(tmp_path: Path) -> None:
    table = pa.table({"id": [5, 1, 9, 2, None, None], "s": ["x", None, None, None, None, None]})
    stats = stats_of(tmp_path, table, row_group_size=2)
    assert (stats["minValues"], stats["maxValues"]) == ({"id": 1, "s": "x"}, {"id": 9, "s": "x"})
    assert stats["nullCount"] == {"id": 2, "s": 5}


def test_all_null_column_has_no_bounds(tmp_path: Path) -> None:
    stats = stats_of(tmp_path, pa.table({"n": pa.array([None, None], pa.int32()), "id": [1, 2]}))
    assert "n" not in stats["minValues"]
    assert "n" not in stats["maxValues"]
    assert stats["nullCount"]["n"] == 2


def test_boolean_and_binary_have_null_counts_only(tmp_path: Path) -> None:
    stats = stats_of(tmp_path, pa.table({"ok": [True, None], "raw": [b"a", b"b"]}))
    assert stats == {"numRecords": 2, "nullCount": {"ok": 1, "raw": 0}}


def test_long_strings_are_cut_and_the_maximum_rounded_up(tmp_path: Path) -> None:
    low, high = "a" * 40, "z" * 31 + "\ud7ff" + "z" * 9
    stats = stats_of(tmp_path, pa.table({"s": [low, high]}))
    assert stats["minValues"]["s"] == "a" * 32
    assert stats["maxValues"]["s"] == "z" * 31 + "\ue000"


def test_a_maximum_that_cannot_be_rounded_up_is_left_out(tmp_path: Path) -> None:
    stats = stats_of(tmp_path, pa.table({"s": ["\U0010ffff" * 40]}))
    assert stats["minValues"]["s"] == "\U0010ffff" * 32
    assert "maxValues" not in stats


@given(st.text(min_size=33, max_size=80))
def test_rounded_prefix_is_above_the_whole_string_in_utf8_order(text: str) -> None:
    bound = round_up_prefix(text[:32])
    if bound is None:
        assert set(text[:32]) == {"\U0010ffff"}
    else:
        assert bound.encode() > text.encode()
        assert len(bound) <= 32


def test_nan_makes_the_maximum_of_an_arrow_file_unsafe(tmp_path: Path) -> None:
    table = pa.table({"x": [1.5, float("nan")], "y": pa.array([0.1, 2.0], pa.float32())})
    stats = stats_of(tmp_path, table)
    assert stats["minValues"]["x"] == 1.5
    assert "maxValues" not in stats, "pyarrow passes over NaN: its maximum is below a value that is there"
    columns = statistics_columns(schema_from_arrow(table.schema), StatisticsPolicy())
    metadata = pq.read_metadata(tmp_path / "f.parquet")
    known = json.loads(serialize_footer_statistics(metadata, columns, nan_free=[("y",)]))
    assert known["maxValues"] == {"y": 2}


def test_float_bounds_are_finite_and_cover_both_zeros(tmp_path: Path) -> None:
    table = pa.table({"z": [0.0, -0.0], "inf": [float("inf"), float("-inf")], "nan": [float("nan")] * 2})
    path = tmp_path / "f.parquet"
    pq.write_table(table, path)
    columns = statistics_columns(schema_from_arrow(table.schema), StatisticsPolicy())
    stats = serialize_footer_statistics(pq.read_metadata(path), columns, nan_free=[("z",), ("inf",)])
    assert '"minValues":{"z":-0.0}' in stats
    assert '"maxValues":{"z":0.0}' in stats


def test_decimals_are_exact_numbers(tmp_path: Path) -> None:
    values = [decimal.Decimal("-0.05"), decimal.Decimal("12345678901234567890123456.78"), None]
    table = pa.table(
        {
            "wide": pa.array(values, pa.decimal128(38, 2)),
            "whole": pa.array([decimal.Decimal(7), decimal.Decimal(-9), None], pa.decimal128(5, 0)),
        }
    )
    stats = stats_of(tmp_path, table)
    assert stats["minValues"] == {"wide": decimal.Decimal("-0.05"), "whole": -9}
    assert stats["maxValues"] == {"wide": decimal.Decimal("12345678901234567890123456.78"), "whole": 7}


def test_dates_before_the_gregorian_calendar(tmp_path: Path) -> None:
    table = pa.table({"d": pa.array([dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(9999, 12, 31)])})
    stats = stats_of(tmp_path, table)
    assert (stats["minValues"]["d"], stats["maxValues"]["d"]) == ("0001-01-01", "9999-12-31")


def test_dates_python_cannot_name_are_left_out(tmp_path: Path) -> None:
    table = pa.table({"d": pa.array([-10_000_000, 10_000_000], pa.int32()).cast(pa.date32())})
    assert stats_of(tmp_path, table) == {"numRecords": 2, "nullCount": {"d": 0}}


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("us", 1_000), ("ns", 1_000_000), ("ms", 1)],
    ids=["microseconds", "nanoseconds", "milliseconds"],
)
def test_timestamp_maximum_rounds_up_to_milliseconds(tmp_path: Path, unit: str, factor: int) -> None:
    off = 0 if unit == "ms" else 1
    raw = pa.array([-1 * factor - off, 1 * factor + off], pa.int64())
    table = pa.table({"ts": raw.cast(pa.timestamp(unit, "UTC")), "ntz": raw.cast(pa.timestamp(unit))})
    path = tmp_path / "f.parquet"
    pq.write_table(table, path, version="2.6")
    schema = schema_from_arrow(pa.schema([("ts", UTC), ("ntz", pa.timestamp("us"))]))
    found = read_footer_statistics(pafs.LocalFileSystem(), [str(path)], statistics_columns(schema, StatisticsPolicy()))
    stats = json.loads(found["stats"][0].as_py())
    low, high = ("1969-12-31T23:59:59.998", "1970-01-01T00:00:00.002") if off else (
        "1969-12-31T23:59:59.999", "1970-01-01T00:00:00.001",
    )  # fmt: skip
    assert stats["minValues"] == {"ts": low + "Z", "ntz": low}
    assert stats["maxValues"] == {"ts": high + "Z", "ntz": high}


def test_last_microsecond_of_the_calendar_has_no_upper_bound(tmp_path: Path) -> None:
    table = pa.table({"ts": pa.array([dt.datetime.max.replace(tzinfo=dt.UTC)], UTC)})
    stats = stats_of(tmp_path, table)
    assert stats["minValues"]["ts"] == "9999-12-31T23:59:59.999Z"
    assert "maxValues" not in stats


def test_null_counts_of_lists_under_structs_and_in_many_row_groups(tmp_path: Path) -> None:
    kind = pa.struct([("l", pa.list_(pa.list_(pa.int32()))), ("m", pa.map_(pa.string(), pa.list_(pa.int32())))])
    values: list[dict[str, Any] | None]
    values = [None, {"l": None, "m": []}, {"l": [], "m": None}, {"l": [None, [1, None]], "m": [("k", None)]}] * 5
    required = pa.field("r", pa.list_(pa.int32()), nullable=False)
    table = pa.table(
        [pa.array(values, kind), pa.array([[], [1], [None], [2, 3]] * 5, required.type)],
        schema=pa.schema([pa.field("st", kind), required]),
    )
    stats = stats_of(tmp_path, table, row_group_size=3)
    assert stats["nullCount"] == {"st": {"l": 10, "m": 10}, "r": 0}


def test_nested_structs_and_names_with_dots(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a.b": pa.array([{"c": 1}, None, {"c": None}], pa.struct([("c", pa.int64())])),
            "a": pa.array([{"b.c": {"d": "x"}}, None, None], pa.struct([("b.c", pa.struct([("d", pa.string())]))])),
        }
    )
    stats = stats_of(tmp_path, table)
    assert stats["minValues"] == {"a.b": {"c": 1}, "a": {"b.c": {"d": "x"}}}
    assert stats["nullCount"] == {"a.b": {"c": 2}, "a": {"b.c": {"d": 2}}}, "null parents count"


def test_lists_and_maps_are_passed_over_without_shifting_what_follows(tmp_path: Path) -> None:
    table = pa.table(
        {
            "l": pa.array([[{"x": 1}], None], pa.list_(pa.struct([("x", pa.int64())]))),
            "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "id": [7, 8],
        }
    )
    assert stats_of(tmp_path, table) == {
        "numRecords": 2,
        "minValues": {"id": 7},
        "maxValues": {"id": 8},
        # A footer counts what is inside lists; of the lists it keeps levels.
        "nullCount": {"l": 1, "m": 1, "id": 0},
    }


def test_policy_counts_leaves_in_schema_order() -> None:
    schema = schema_from_arrow(
        pa.schema(
            [("l", pa.list_(pa.int64())), ("s", pa.struct([("x", pa.int64()), ("y", pa.int64())])), ("z", pa.int64())]
        )
    )

    def paths(policy: StatisticsPolicy) -> list[tuple[str, ...]]:
        return [c.path for c in statistics_columns(schema, policy)]

    assert paths(StatisticsPolicy(2)) == [("l",), ("s", "x")]
    assert paths(StatisticsPolicy(-1)) == [("l",), ("s", "x"), ("s", "y"), ("z",)]
    assert paths(StatisticsPolicy(0)) == []
    assert paths(StatisticsPolicy(columns=(("S",), ("z",)))) == [("s", "x"), ("s", "y"), ("z",)]


def test_columns_outside_the_policy_are_absent(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "b": [2]})
    assert stats_of(tmp_path, table, StatisticsPolicy(1)) == {
        "numRecords": 1, "minValues": {"a": 1}, "maxValues": {"a": 1}, "nullCount": {"a": 0},
    }  # fmt: skip
    assert stats_of(tmp_path, table, StatisticsPolicy(0)) == {"numRecords": 1}


def test_column_a_file_lacks_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    schema = schema_from_arrow(pa.schema([("a", pa.int64()), ("later", pa.int64())]))
    found = read_footer_statistics(pafs.LocalFileSystem(), [str(path)], statistics_columns(schema, StatisticsPolicy()))
    assert "later" not in found["stats"][0].as_py()


def test_missing_and_broken_files_raise_our_errors(tmp_path: Path) -> None:
    schema = schema_from_arrow(pa.schema([("a", pa.int64())]))
    with pytest.raises(MissingFileError):
        read_footer_statistics(
            pafs.LocalFileSystem(), [str(tmp_path / "no.parquet")], statistics_columns(schema, StatisticsPolicy())
        )
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 this is no footer PAR1")
    with pytest.raises(StorageError):
        read_footer_statistics(pafs.LocalFileSystem(), [str(broken)], statistics_columns(schema, StatisticsPolicy()))


def test_no_paths_give_no_rows() -> None:
    schema = schema_from_arrow(pa.schema([("a", pa.int64())]))
    assert (
        read_footer_statistics(pafs.LocalFileSystem(), [], statistics_columns(schema, StatisticsPolicy())).num_rows == 0
    )


def test_reading_footers_does_not_import_pandas(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"s": ["x"], "ts": pa.array([0], UTC)}), path)
    code = f"""
import sys, pyarrow as pa, pyarrow.fs as pafs
from delta_orch.engines.base import StatisticsPolicy
from delta_orch.engines.footer_statistics import read_footer_statistics, statistics_columns
from delta_orch.protocol.arrow_building import schema_from_arrow
schema = schema_from_arrow(pa.schema([("s", pa.string()), ("ts", pa.timestamp("us", "UTC"))]))
read_footer_statistics(pafs.LocalFileSystem(), [{str(path)!r}], statistics_columns(schema, StatisticsPolicy()))
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
