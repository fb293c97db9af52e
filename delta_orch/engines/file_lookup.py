"""Finds the columns of a table in a data file.

Files have columns under their physical names, and in mode `id` with their field ids (PROTOCOL, "Reader Requirements for
Column Mapping").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import pyarrow as pa

from delta_orch.errors import SchemaMismatchError
from delta_orch.protocol.types import StructField, StructType
from delta_orch.table.column_mapping import ColumnMappingMode, field_id, physical_name

_PARQUET_ID = b"PARQUET:field_id"


class NamePositions:
    """The positions of names. An exact match comes first, then a match without regard to case. If there are several,
    the first counts."""

    def __init__(self, names: Sequence[str]) -> None:
        backwards = [(name, index) for index, name in enumerate(names)][::-1]
        self._exact = dict(backwards)
        self._folded = {name.lower(): index for name, index in backwards}

    def find(self, name: str) -> int | None:
        exact = self._exact.get(name)
        return self._folded.get(name.lower()) if exact is None else exact


class Candidates(tuple[pa.Field, ...]):
    """The columns of a file, or the fields of a struct in it, prepared for many lookups."""

    @cached_property
    def names(self) -> NamePositions:
        return NamePositions([field.name for field in self])

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """Return the positions by field id, for columns with an id."""
        ids = (((field.metadata or {}).get(_PARQUET_ID), index) for index, field in enumerate(self))
        return {number: index for number, index in reversed(list(ids)) if number is not None}


def find_in_file(field: StructField, candidates: Sequence[pa.Field], mode: ColumnMappingMode) -> int | None:
    """Return the position of a table's column among the columns of a file, or of a struct in it. None if it does not
    exist.

    Args:
        candidates: The columns of the file, as `Candidates` if there are several lookups.
    """
    candidate_fields = candidates if isinstance(candidates, Candidates) else Candidates(candidates)
    if mode is ColumnMappingMode.NONE:
        return candidate_fields.names.find(field.name)
    # Columns that do not belong to the table (`_change_type`) have no id and are matched by name.
    if mode is ColumnMappingMode.ID and field_id(field) is not None:
        return candidate_fields.ids.get(str(field_id(field)).encode())
    return candidate_fields.names.find(physical_name(field))


def ensure_field_ids(fields: Iterable[StructField], in_file: Candidates, mode: ColumnMappingMode) -> None:
    """Check that columns in mode `id` can be identified in a file (PROTOCOL, "Reader Requirements for Column Mapping").

    Args:
        fields: The columns of the table to read from the file.
        in_file: All columns of the file.

    Raises:
        SchemaMismatchError: No column of the file has an id, so the columns cannot be identified.
    """
    if mode is not ColumnMappingMode.ID or not in_file or in_file.ids:
        return
    name = next((field.name for field in fields if field_id(field) is not None), None)
    if name is not None:
        raise SchemaMismatchError(
            f"Column {name} is identified by its field id, but the columns of the file have no ids",
            cause="Its writer did not follow the table's column mapping",
            remedy="Rewrite the file with a writer that supports column mapping",
            column=name,
        )


def paths_in_file(field: StructField, found: pa.Field, mode: ColumnMappingMode) -> list[str]:
    """Return the part of a file's column that belongs to the table's column: the column itself, or fields of structs in
    it.

    Returns: Names joined by dots, as Arrow's Parquet reader expects them.
    """
    if not isinstance(field.data_type, StructType) or not pa.types.is_struct(found.type):
        return [found.name]
    children, own_paths = Candidates(found.type), []
    for child in field.data_type:
        index = find_in_file(child, children, mode)
        if index is not None:
            own_paths.append((children[index].name, paths_in_file(child, children[index], mode)))
    is_whole = len(own_paths) == len(children) and all(paths == [name] for name, paths in own_paths)
    # Even a struct without a requested field must be read, to know where it is null.
    if is_whole or not own_paths:
        return [found.name]
    return [f"{found.name}.{path}" for _, paths in own_paths for path in paths]
