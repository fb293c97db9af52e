"""Every golden case of kind `variant`: its type, its JSON, its nulls, its errors; and again through our own encoder."""

from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.errors import InvalidVariantError
from delta_orch.protocol.variant.arrays import variant_to_json, variants_to_arrow
from delta_orch.protocol.variant.encode import encode_variant
from delta_orch.protocol.variant.extract import variant_get
from delta_orch.protocol.variant.reconstruct import reconstruct_variant
from delta_orch.protocol.variant.variant import Variant

ROOT = Path(__file__).parents[2] / ".." / "shared" / "golden"


def cases():
    if not (ROOT / "index.json").is_file():
        return
    for case in orjson.loads((ROOT / "index.json").read_bytes()):
        if case["kind"] == "variant":
            yield ROOT / case["path"]


CASES = list(cases())
pytestmark = pytest.mark.skipif(not CASES, reason=f"the golden cases are not at {ROOT}")


def column_of(path: Path, case: dict) -> pa.ChunkedArray:
    """What the case has to read: a column of its Parquet file, or one made of its metadata/value pairs."""
    if "data" in case:
        return pq.read_table(path / case["data"])[case["column"]]
    return pa.chunked_array([variants_to_arrow(upstream(path, row) for row in case["rows"])])


def upstream(path: Path, row: dict | None) -> Variant | None:
    return row and Variant((path / row["metadata"]).read_bytes(), (path / row["value"]).read_bytes())


def pairs(column: pa.ChunkedArray) -> list[Variant | None]:
    return [row and Variant(row["metadata"], row["value"]) for row in column.to_pylist()]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name)
def test_case(path):
    case = orjson.loads((path / "case.json").read_bytes())
    column = column_of(path, case)
    if case["must_error"]:
        with pytest.raises(InvalidVariantError):
            reconstruct_variant(column)
        with pytest.raises(InvalidVariantError):
            variant_to_json(column)
        return
    try:
        variants = reconstruct_variant(column)
    except InvalidVariantError:
        assert case.get("may_error"), "the case must be read"
        return
    for chunk in variants.chunks:
        chunk.validate(full=True)
    assert len(variants) == len(case["rows"])
    for variant, row in zip(pairs(variants), case["rows"], strict=True):
        assert (variant is None) == (row is None)
        if row is not None:
            assert variant.type_name == row["type"]
            assert variant.to_json() == row["json"]
            # Decoded values, not bytes: the layout is the writer's choice.
            assert variant.to_python() == upstream(path, row).to_python()
            assert encode_variant(variant.to_python()).to_python() == variant.to_python()
    assert variant_to_json(column).to_pylist() == [row and row["json"] for row in case["rows"]]
    assert variant_get(column, "$").to_pylist() == variants.to_pylist()


def is_valid(path):
    case = orjson.loads((path / "case.json").read_bytes())
    return not case["must_error"] and not case.get("may_error")


@pytest.mark.parametrize("path", filter(is_valid, CASES), ids=lambda path: path.name)
def test_fields_are_found_without_reconstruction(path):
    case = orjson.loads((path / "case.json").read_bytes())
    column = column_of(path, case)
    parsed = [row and orjson.loads(row["json"]) for row in case["rows"]]
    names = {name for value in parsed if isinstance(value, dict) for name in value} | {"absent"}
    for name in names:
        found = pairs(variant_get(column, [name]))
        for variant, value in zip(found, parsed, strict=True):
            expected = isinstance(value, dict) and name in value
            assert (variant is not None) == expected
            if expected:
                assert orjson.loads(variant.to_json()) == value[name]
    for index in range(3):
        found = pairs(variant_get(column, [index]))
        for variant, value in zip(found, parsed, strict=True):
            expected = isinstance(value, list) and index < len(value)
            assert (variant is not None) == expected
            if expected:
                assert orjson.loads(variant.to_json()) == value[index]
