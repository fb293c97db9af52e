from __future__ import annotations

from typing import Any

import pytest

from delta_orch.errors import ProtocolViolationError, UnsupportedFeatureError
from delta_orch.protocol import types as t
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.types import ArrayType, StructType
from delta_orch.table.column_mapping import (
    ColumnMappingMode,
    field_id,
    physical_path,
    to_physical,
)
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.type_widening import ensure_known_type_changes, is_followable, is_widening
from tests.certain import a


def mapped(name: Any, number: Any, data_type: Any) -> Any:
    metadata = {"delta.columnMapping.physicalName": f"col-{number}", "delta.columnMapping.id": number}
    return t.StructField(name, data_type, True, metadata)


INNER = t.StructType((mapped("x", 3, t.LONG),))
SCHEMA = t.StructType((mapped("a.b", 1, t.STRING), mapped("s", 2, t.ArrayType(INNER)), mapped("st", 4, INNER)))


def test_physical_names_replace_logical_ones_at_every_level() -> None:
    physical = to_physical(SCHEMA, ColumnMappingMode.NAME)
    assert physical.names == ("col-1", "col-2", "col-4")
    assert a(StructType, a(ArrayType, physical.fields[1].data_type).element_type).names == ("col-3",)
    assert field_id(physical.fields[2]) == 4
    assert to_physical(SCHEMA, ColumnMappingMode.NONE) is SCHEMA


def test_paths_are_translated_without_regard_to_case() -> None:
    assert physical_path(SCHEMA, ("ST", "x")) == ("col-4", "col-3")
    assert physical_path(SCHEMA, ("unknown", "x")) == ("unknown", "x")


def test_the_mode_counts_only_where_the_feature_is_supported() -> None:
    metadata = Metadata("id", "", configuration={"delta.columnMapping.mode": "name"})
    assert TableConfiguration(Protocol(1, 2), metadata).column_mapping is ColumnMappingMode.NONE
    assert TableConfiguration(Protocol(2, 5), metadata).column_mapping is ColumnMappingMode.NAME
    assert TableConfiguration(Protocol(3, 7, (), ("columnMapping",)), metadata).column_mapping is ColumnMappingMode.NAME


def test_a_field_without_a_physical_name_is_a_protocol_violation() -> None:
    plain = t.StructType((t.StructField("a", t.LONG),))
    with pytest.raises(ProtocolViolationError, match="'a'"):
        to_physical(plain, ColumnMappingMode.NAME)


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        (t.BYTE, t.LONG, True),
        (t.INTEGER, t.DOUBLE, True),
        (t.LONG, t.DOUBLE, False),
        (t.FLOAT, t.DOUBLE, True),
        (t.DOUBLE, t.FLOAT, False),
        (t.DATE, t.TIMESTAMP_NTZ, True),
        (t.DATE, t.TIMESTAMP, False),
        (t.DecimalType(5, 2), t.DecimalType(7, 4), True),
        (t.DecimalType(5, 2), t.DecimalType(6, 4), False),
        (t.INTEGER, t.DecimalType(12, 2), True),
        (t.INTEGER, t.DecimalType(11, 2), False),
        (t.LONG, t.DecimalType(20, 0), True),
        (t.STRING, t.LONG, False),
    ],
)
def test_the_allowed_widenings(source: Any, target: Any, allowed: bool) -> None:
    assert is_widening(source, target) is allowed


def test_readers_follow_an_integer_into_every_decimal_that_holds_it() -> None:
    assert is_followable(t.BYTE, t.DecimalType(4, 1)) and not is_widening(t.BYTE, t.DecimalType(4, 1))
    assert is_followable(t.LONG, t.DecimalType(20, 1)) and not is_followable(t.LONG, t.DecimalType(19, 1))


def test_an_unknown_change_in_the_history_is_refused() -> None:
    def history(source: str, target: str) -> StructType:
        changes = {"delta.typeChanges": [{"fromType": source, "toType": target}]}
        return t.StructType((t.StructField("s", t.StructType((t.StructField("a", t.LONG, True, changes),))),))

    ensure_known_type_changes(history("integer", "long"))
    with pytest.raises(UnsupportedFeatureError, match="'a'"):
        ensure_known_type_changes(history("long", "string"))
