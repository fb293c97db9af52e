"""Golden variants: one Parquet column, or pairs of metadata and value, with the JSON each row stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.errors import InvalidVariantError
from delta_orch.protocol.variant.encode import encode_variant
from delta_orch.protocol.variant.extract import variant_get
from delta_orch.protocol.variant.reconstruct import reconstruct_variant
from delta_orch.protocol.variant.variant import Variant
from delta_orch.variant import variant_to_json, variants_to_arrow
from tests.harness.golden import GoldenCase, GoldenMismatch


def check_variant_case(case: GoldenCase) -> None:
    """Decode the case's column by every way there is, and its values again through our own encoder.

    Raises:
        GoldenMismatch: Something differs; the message says what.
    """
    definition = case.definition
    column = read_variant_column(case)
    if definition["must_error"]:
        _must_be_invalid(case, column)
        return
    try:
        variants = reconstruct_variant(column)
    except InvalidVariantError as e:
        if definition.get("may_error"):
            return
        raise GoldenMismatch(f"{case.name}: refused, but the case must be read: {e}") from e
    for chunk in variants.chunks:
        chunk.validate(full=True)
    rows = definition["rows"]
    _ensure(case, "number of rows", len(variants), len(rows))
    for number, (variant, row) in enumerate(zip(variant_objects(variants), rows, strict=True)):
        _check_row(case, number, variant, row)
    _ensure(case, "JSON of the column", variant_to_json(column).to_pylist(), [row and row["json"] for row in rows])
    _ensure(case, "the column by path $", variant_get(column, "$").to_pylist(), variants.to_pylist())


def read_variant_column(case: GoldenCase) -> pa.ChunkedArray:
    """What the case has to read: a column of its Parquet file, or one made of its pairs of metadata and value."""
    definition = case.definition
    if "data" in definition:
        return pq.read_table(case.directory / definition["data"])[definition["column"]]
    return pa.chunked_array([variants_to_arrow(_stored(case.directory, row) for row in definition["rows"])])


def variant_objects(column: pa.ChunkedArray) -> list[Variant | None]:
    """One value a row; None for SQL NULL."""
    return [row and Variant(row["metadata"], row["value"]) for row in column.to_pylist()]


def _check_row(case: GoldenCase, number: int, variant: Variant | None, row: dict[str, Any] | None) -> None:
    _ensure(case, f"row {number} is NULL", variant is None, row is None)
    stored = _stored(case.directory, row)
    if variant is None or row is None or stored is None:
        return
    _ensure(case, f"type of row {number}", variant.type_name, row["type"])
    _ensure(case, f"JSON of row {number}", variant.to_json(), row["json"])
    # Decoded values, not bytes: the layout is the writer's choice.
    _ensure(case, f"value of row {number}", variant.to_python(), stored.to_python())
    again = encode_variant(variant.to_python())
    _ensure(case, f"value of row {number}, encoded anew", again.to_python(), variant.to_python())


def _stored(directory: Path, row: dict[str, Any] | None) -> Variant | None:
    if row is None:
        return None
    return Variant((directory / row["metadata"]).read_bytes(), (directory / row["value"]).read_bytes())


def _must_be_invalid(case: GoldenCase, column: pa.ChunkedArray) -> None:
    for what, read in (("reconstructing", reconstruct_variant), ("printing", variant_to_json)):
        try:
            read(column)
        except InvalidVariantError:
            continue
        raise GoldenMismatch(f"{case.name}: {what} succeeded, InvalidVariantError was expected")


def _ensure(case: GoldenCase, what: str, actual: Any, expected: Any) -> None:
    if actual != expected:
        raise GoldenMismatch(f"{case.name}: {what}:\n  is       {actual!r}\n  expected {expected!r}")
