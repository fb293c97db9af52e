"""Identity columns: their next values and their high-water mark (PROTOCOL, "Identity Columns").

The table's metadata holds the mark, and the commit that uses values moves it. So two writers with the same values
cannot both commit. The second one detects the changed metadata, and generates values after the new mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import getitem

import orjson
import pyarrow as pa

from delta_orch.engines.base import IdentityValues
from delta_orch.errors import InvalidRequestError, ProtocolViolationError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.actions import Metadata
from delta_orch.protocol.schema import (
    IDENTITY_ALLOW_EXPLICIT_INSERT,
    IDENTITY_HIGH_WATER_MARK,
    IDENTITY_START,
    IDENTITY_STEP,
    parse_schema,
    serialize_schema,
)
from delta_orch.protocol.schema_edit import without_metadata
from delta_orch.protocol.types import StructField, StructType
from delta_orch.table.column_details import IdentityDetails
from delta_orch.table.column_mapping import physical_name, physical_path
from delta_orch.writing.target import WriteTarget

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


def identity_of(field: StructField) -> IdentityDetails | None:
    """Return the definition of an identity column. None for any other column.

    Raises:
        ProtocolViolationError: The definition is invalid, such as a step of 0.
    """
    if IDENTITY_START not in field.metadata:
        return None
    start, step = field.metadata[IDENTITY_START], field.metadata.get(IDENTITY_STEP, 1)
    mark = field.metadata.get(IDENTITY_HIGH_WATER_MARK)
    numbers = [start, step] if mark is None else [start, step, mark]
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers) or step == 0:
        raise ProtocolViolationError(
            f"The identity column {field.name} has no usable definition",
            cause=f"start {start!r}, step {step!r}, high-water mark {mark!r}",
            column=field.name,
        )
    return IdentityDetails(start, step, mark, field.metadata.get(IDENTITY_ALLOW_EXPLICIT_INSERT) is True)


def next_values(name: str, identity: IdentityDetails) -> IdentityValues:
    """Return the values `start + k * step` after the high-water mark.

    Raises:
        InvalidRequestError: No value is left in 64 bits.
    """
    k = 0
    if identity.high_water_mark is not None:
        # Explicit values can move the mark to a number that the column would not generate.
        k = max(0, (identity.high_water_mark - identity.start) // identity.step + 1)
    first = identity.start + k * identity.step
    if not LONG_MIN <= first <= LONG_MAX:
        raise InvalidRequestError(
            f"The identity column {name} has used up its values",
            cause=f"The next one, {first}, does not fit into 64 bits",
            remedy="Pass explicit values if the column allows them, or recreate the table",
            column=name,
        )
    return IdentityValues(name, first, identity.step)


def with_moved_marks(target: WriteTarget, adds: pa.Table, identities: Sequence[IdentityValues]) -> WriteTarget:
    """Return the target with its high-water marks at the last values of new files. Without rows, return the target
    itself. The files have statistics of the columns (`StatisticsPolicy.also`)."""
    marks: dict[str, int] = {}
    for values in identities:
        path = physical_path(target.schema, (values.name,))
        used = [_bound(stats, path, values.step > 0) for stats in FileTable(adds).stats.to_pylist()]
        if used:
            marks[values.name] = max(used) if values.step > 0 else min(used)
    if not marks:
        return target
    return replace(target, table=target.table.with_schema(_with_marks(target.schema, marks)))


def with_marks_moved_to(schema: StructType, furthest: Mapping[str, int | None]) -> StructType:
    """Return the schema with advanced high-water marks, so that no value is generated twice. Marks never go back.

    Args:
        furthest: The greatest value of each identity column in the rows, or the least value if the step is negative.
    """
    marks: dict[str, int] = {}
    for field in schema:
        value, identity = furthest.get(field.name), identity_of(field)
        if value is None or identity is None or (k := (value - identity.start) // identity.step) < 0:
            continue
        # The mark is a value that the column generates, because other clients continue from it.
        mark, recorded_mark = identity.start + k * identity.step, identity.high_water_mark
        if recorded_mark is None or (mark - recorded_mark) * identity.step > 0:
            marks[field.name] = mark
    return _with_marks(schema, marks)


def _bound(stats: str, path: tuple[str, ...], is_upper: bool) -> int:
    return int(reduce(getitem, path, orjson.loads(stats)["maxValues" if is_upper else "minValues"]))


def _with_marks(schema: StructType, marks: Mapping[str, int]) -> StructType:
    return StructType(
        tuple(
            replace(f, metadata={**f.metadata, IDENTITY_HIGH_WATER_MARK: marks[f.name]}) if f.name in marks else f
            for f in schema
        )
    )


def with_marks_kept(metadata: Metadata, newest: Metadata) -> Metadata:
    """Return restored metadata, with high-water marks of identity columns no earlier than the current ones. Columns are
    the same if they have the same physical name and the same direction."""
    if not (has_identity(metadata) and has_identity(newest)):
        return metadata
    schema = parse_schema(metadata.schema_string)
    now = {physical_name(field): field for field in parse_schema(newest.schema_string)}
    marks: dict[str, int] = {}
    for field in schema:
        current = now.get(physical_name(field))
        before, after = identity_of(field), None if current is None else identity_of(current)
        if before is None or after is None or after.high_water_mark is None or before.step * after.step < 0:
            continue
        recorded_mark = after.high_water_mark if before.high_water_mark is None else before.high_water_mark
        marks[field.name] = (
            max(recorded_mark, after.high_water_mark) if before.step > 0 else min(recorded_mark, after.high_water_mark)
        )
    return replace(metadata, schema_string=serialize_schema(_with_marks(schema, marks))) if marks else metadata


def has_identity(metadata: Metadata) -> bool:
    """Whether a table has an identity column."""
    return IDENTITY_START in metadata.schema_string


def without_marks(metadata: Metadata) -> Metadata:
    """Return the metadata without high-water marks. It is equal for two writers that only generated values."""
    schema = without_metadata(parse_schema(metadata.schema_string), IDENTITY_HIGH_WATER_MARK.__eq__)
    return replace(metadata, schema_string=serialize_schema(schema))
