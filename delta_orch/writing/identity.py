"""Identity columns: their next values and their high-water mark (PROTOCOL, "Identity Columns").

The mark stands in the table's metadata and is moved by the commit that uses the values, so two writers that take the
same values cannot both commit: the second finds the metadata changed, and begins again behind the new mark.
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
    """The definition of an identity column; None for any other column.

    Raises:
        ProtocolViolationError: Its definition cannot be used, such as a step of 0.
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
    """The values behind the high-water mark that are `start + k * step`.

    Raises:
        InvalidRequestError: No value is left in 64 bits.
    """
    k = 0
    if identity.high_water_mark is not None:
        # A mark that explicit values have moved need not be one of the column's own.
        k = max(0, (identity.high_water_mark - identity.start) // identity.step + 1)
    first = identity.start + k * identity.step
    if not LONG_MIN <= first <= LONG_MAX:
        raise InvalidRequestError(
            f"The identity column {name} has used up its values",
            cause=f"The next one, {first}, does not fit into 64 bits",
            remedy="Give the values yourself where the column allows it, or recreate the table",
            column=name,
        )
    return IdentityValues(name, first, identity.step)


def with_moved_marks(target: WriteTarget, adds: pa.Table, identities: Sequence[IdentityValues]) -> WriteTarget:
    """The target with its high-water marks at the last values that files just written hold; itself where there are no
    rows. The files have statistics of the columns (`StatisticsPolicy.also`)."""
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
    """The schema with its high-water marks advanced, so that no value is generated twice. Marks never go back.

    Args:
        furthest: For identity columns, the largest value of the rows, or the smallest where the step is negative.
    """
    marks: dict[str, int] = {}
    for field in schema:
        value, identity = furthest.get(field.name), identity_of(field)
        if value is None or identity is None or (k := (value - identity.start) // identity.step) < 0:
            continue
        # The column's own value there or before: other clients count on from the mark.
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
    """Metadata that come back, with the high-water marks of their identity columns no earlier than where they stand
    now. Columns are the same where files know them by the same name and they count in the same direction."""
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
    """The metadata without high-water marks. Two writers that only generated values agree in it."""
    schema = without_metadata(parse_schema(metadata.schema_string), IDENTITY_HIGH_WATER_MARK.__eq__)
    return replace(metadata, schema_string=serialize_schema(schema))
