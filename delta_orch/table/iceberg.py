"""Rules for tables that promise to be readable as Iceberg (PROTOCOL, "Iceberg Compatibility V1" and "…V2"; V3 as Delta
on Spark). Every change and write of such a table checks them here. No other file contains a rule of Iceberg.

Beside these rules, its columns have ids in the files (`column_mapping`, `row_tracking.ICEBERG_IDS`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from delta_orch.errors import InvalidPropertyError, InvalidRequestError
from delta_orch.protocol.schema import TYPE_CHANGES, data_type_from_json
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.types import (
    BYTE,
    DATE,
    INTEGER,
    LONG,
    SHORT,
    VARIANT,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    fields_of,
    traits_of,
    types_of,
)
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.row_tracking import ROW_ID_COLUMN


def with_dependent_properties(configuration: Mapping[str, str]) -> dict[str, str]:
    """The properties of a table to be created, with those that they depend on: Iceberg compatibility maps columns, and
    V3 tracks rows."""
    properties = dict(configuration)
    versions = TableProperties.parse(properties).iceberg_compat_versions
    if versions:
        properties.setdefault("delta.columnMapping.mode", "name")
    if 3 in versions:
        properties.setdefault("delta.enableRowTracking", "true")
    return properties


def needs_nested_ids(table: TableConfiguration) -> bool:
    """Whether the elements of lists and maps have ids, too (PROTOCOL, "Writer Requirements for IcebergCompatV2")."""
    return not {2, 3}.isdisjoint(table.properties.iceberg_compat_versions)


def holds_partition_columns(table: TableConfiguration) -> bool:
    """Whether new files must contain the partition columns."""
    return any(table.enables(f"icebergCompatV{version}") for version in (1, 2, 3))


def ensure_compatible(table: TableConfiguration) -> None:
    """Check that the table can keep its promise, if it makes one.

    Raises:
        InvalidRequestError: It cannot; every contradiction is named. Nothing was changed.
    """
    if not table.properties.is_iceberg_compatible:
        return
    if problems := list(_problems(table)):
        names = [f"icebergCompatV{version}" for version in table.properties.iceberg_compat_versions]
        raise InvalidRequestError(
            f"The table cannot be compatible with Iceberg ({' and '.join(names)})",
            cause="; ".join(problems),
            remedy="Change what contradicts it, or leave the property off",
            features=names,
            problems=problems,
        )


def _problems(table: TableConfiguration) -> Iterator[str]:
    features, properties = table.features, table.properties
    if properties.column_mapping_mode == "none":
        yield "it needs delta.columnMapping.mode 'name' or 'id'"
    versions = properties.iceberg_compat_versions
    if len(versions) > 1:
        yield f"V{' and V'.join(map(str, versions))} exclude each other: set the properties of all but one to false"
    if 1 in versions and "deletionVectors" in features:
        yield "V1 excludes the table feature deletionVectors"
    if 2 in versions and "deletionVectors" in features and properties.enable_deletion_vectors:
        yield "V2 excludes deletion vectors: set delta.enableDeletionVectors to false"
    if 3 in versions and not properties.enable_row_tracking:
        yield "V3 needs delta.enableRowTracking = true"
    types = set(types_of(table.schema))
    if 3 in versions and VARIANT in types:
        types.remove(VARIANT)
        yield "this release does not write variants for Iceberg V3"
    excluded = (ArrayType, MapType) if 1 in versions else ()
    if forbidden := {str(t) for t in types if not traits_of(t).is_iceberg or isinstance(t, excluded)}:
        yield f"it excludes the types {', '.join(sorted(forbidden))}"
    if TYPE_CHANGES not in table.metadata.schema_string:
        return
    for field in fields_of(table.schema):
        for change in field.metadata.get(TYPE_CHANGES) or ():
            before, after = data_type_from_json(change["fromType"]), data_type_from_json(change["toType"])
            if not _can_widen(before, after):
                yield f"Iceberg cannot express that column {field.name} went from {before} to {after}"


def _can_widen(before: DataType, after: DataType) -> bool:
    """Whether Iceberg knows a change of type, too: not to double from an integer, not from date, not the scale."""
    integers = (BYTE, SHORT, INTEGER, LONG)
    if before in integers:
        return after in integers
    if isinstance(before, DecimalType) and isinstance(after, DecimalType):
        return before.scale == after.scale
    return before != DATE


def ensure_may_widen(table: TableConfiguration, name: str, before: DataType, after: DataType) -> None:
    """Raise InvalidRequestError where the table is compatible, and Iceberg cannot express the column's new type."""
    if table.properties.is_iceberg_compatible and not _can_widen(before, after):
        raise InvalidRequestError(
            f"Column {name} cannot go from {before} to {after} on a table that is compatible with Iceberg",
            cause="Iceberg has no such change of type",
            remedy="Set the property of Iceberg compatibility to false first",
            column=name,
        )


def ensure_same_partitioning(before: TableConfiguration, after: TableConfiguration) -> None:
    """PROTOCOL, "Writer Requirements for IcebergCompatV2": a partitioned table keeps the names of its partitioning.

    Raises InvalidRequestError: It does not.
    """
    columns_before = before.metadata.partition_columns
    is_compatible = before.properties.is_iceberg_compatible and after.properties.is_iceberg_compatible
    if is_compatible and columns_before and columns_before != after.metadata.partition_columns:
        raise InvalidRequestError(
            f"The table is compatible with Iceberg and stays partitioned by {', '.join(columns_before)}",
            remedy="Keep the partition columns, or set the property of Iceberg compatibility to false first",
            partition_columns=list(columns_before),
        )


def ensure_promise_kept(before: TableConfiguration, after: TableConfiguration) -> None:
    """Raise InvalidPropertyError where V3 would be switched off."""
    if 3 in before.properties.iceberg_compat_versions and 3 not in after.properties.iceberg_compat_versions:
        raise InvalidPropertyError(
            "delta.enableIcebergCompatV3 cannot be switched off",
            cause="Iceberg readers know the table's rows by their ids; Delta on Spark does not switch it off either",
            remedy="Write the rows into a new table",
            property="delta.enableIcebergCompatV3",
        )


def ensure_new_files_fit(table: TableConfiguration, *, have_vectors: bool, lack_counts: bool) -> None:
    """Check files that are added to a compatible table.

    Raises:
        InvalidRequestError: One lacks its number of records, or has a deletion vector that V1 and V2 exclude.
    """
    have_vectors = have_vectors and 3 not in table.properties.iceberg_compat_versions
    if have_vectors or lack_counts:
        raise InvalidRequestError(
            "The table is compatible with Iceberg, but a new file is not",
            cause="It has a deletion vector" if have_vectors else "Its statistics lack numRecords",
        )


def versions_begun(before: TableConfiguration, after: TableConfiguration) -> set[int]:
    """The versions of Iceberg compatibility that are switched on."""
    return {*after.properties.iceberg_compat_versions}.difference(before.properties.iceberg_compat_versions)


def ensure_files_fit(before: TableConfiguration, begun: set[int], *, have_vectors: bool, lack_counts: bool) -> None:
    """Check the files that are there where versions of Iceberg compatibility are switched on.

    Raises:
        InvalidRequestError: A file has a deletion vector that V1 and V2 exclude, for V1 lacks its number of records or
            its partition values, or for V3 may hold row ids that Iceberg does not find. Nothing was changed.
    """
    problem = None
    if begun != {3} and have_vectors:
        problem = "Some of its files have deletion vectors"
    elif 1 in begun and before.partition_columns:
        problem = "Its files do not hold the values of the partition columns"
    elif 1 in begun and lack_counts:
        problem = "Some of its files do not say how many records they have"
    elif 3 in begun and ROW_ID_COLUMN in before.configuration:
        problem = "It tracked rows before: its files may hold row ids without the field ids that Iceberg has for them"
    if problem is not None:
        raise InvalidRequestError(
            "The table cannot become compatible with Iceberg as it is",
            cause=problem,
            remedy="Write its rows into a new table",
        )
