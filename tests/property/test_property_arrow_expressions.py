"""Expressions of pyarrow and their translation give the same answer for every row: true, false and null."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch import DeltaTable
from delta_orch.expressions.from_arrow import translate_arrow_expression
from delta_orch.expressions.to_arrow import arrow_predicate
from delta_orch.protocol.arrow_building import schema_from_arrow

SCHEMA = pa.schema(
    [
        ("l", pa.int64()), ("i", pa.int32()), ("y", pa.int8()), ("x", pa.float64()), ("f", pa.float32()),
        ("s", pa.string()), ("b", pa.binary()), ("t", pa.bool_()), ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us")), ("m", pa.decimal128(6, 2)),
        ("st", pa.struct([("k", pa.int64()), ("a.b", pa.string())])),
    ]
)  # fmt: skip
MOMENTS = [datetime(1960, 1, 1, 1, 2, 3, 4), datetime(2013, 1, 1), datetime(2013, 1, 1, 0, 0, 0, 1)]
VALUES: dict[str, list[Any]] = {
    "l": [-(2**63), -1, 0, 3, 2**63 - 1],
    "i": [-(2**31), -1, 0, 3, 2**31 - 1],
    "y": [-128, 0, 3, 127],
    "x": [-math.inf, -0.0, 0.0, 0.1, 1.5, math.inf, math.nan],
    "f": [-math.inf, -0.0, 0.0, 0.5, 1.5, math.nan],
    "s": ["", "a", "ab", "b", "ä", "😀"],
    "b": [b"", b"a", b"\xff"],
    "t": [True, False],
    "d": [date(1960, 1, 1), date(1970, 1, 1), date(2013, 1, 1)],
    "ts": [moment.replace(tzinfo=UTC) for moment in MOMENTS],
    "n": MOMENTS,
    "m": [Decimal("-9999.99"), Decimal("0.00"), Decimal("1.50")],
}
COMPARE = [
    lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b,
    lambda a, b: a >= b,
]  # fmt: skip


def column(name: str) -> pc.Expression:
    return pc.field(name)


OTHERS = [
    pc.field("st", "k") > 2,
    pc.field("st", "a.b") == "x",
    pc.field("st").is_null(),
    pc.field("st", "k").isin([1]),
    pc.starts_with(column("s"), "a"),
    pc.starts_with(column("s"), ""),
    pc.starts_with(column("s"), "A", ignore_case=True),
    pc.match_like(column("s"), "a%"),
    column("t"),
    column("l") == column("i"),
    column("x") > column("x"),
    column("x") != column("x"),
    column("l").is_valid(),
    column("x").is_nan(),
    column("f").is_nan(),
    column("x").is_null(nan_is_null=True),
    pc.add(column("i"), column("y")) > 0,
    pc.field(1) == 3,
    pc.scalar(True),
    pc.scalar(False),
]


def leaves() -> st.SearchStrategy[pc.Expression]:
    names = st.sampled_from(sorted(VALUES))

    def constant(name: str) -> pc.Expression:
        return st.sampled_from([*VALUES[name], None]).map(lambda v: pc.scalar(pa.scalar(v, SCHEMA.field(name).type)))

    compared = names.flatmap(lambda n: st.builds(lambda op, c: op(column(n), c), st.sampled_from(COMPARE), constant(n)))
    flipped = names.flatmap(lambda n: st.builds(lambda op, c: op(c, column(n)), st.sampled_from(COMPARE), constant(n)))
    listed = names.flatmap(
        lambda n: st.lists(st.sampled_from([*VALUES[n], None]), max_size=3).map(
            lambda vs: column(n).isin(pa.array(vs, SCHEMA.field(n).type))
        )
    )
    return st.one_of(compared, flipped, listed, names.map(lambda n: column(n).is_null()), st.sampled_from(OTHERS))


EXPRESSIONS = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        inner.map(lambda a: ~a),
        inner.map(lambda a: a.is_null()),
        inner.map(lambda a: a == pc.scalar(True)),
    ),
    max_leaves=6,
)


def sample_rows() -> pa.Table:
    """Every edge once, and a row of nulls."""
    count = max(map(len, VALUES.values())) + 1
    columns = {n: [v[i] if i < len(v) else None for i in range(count)] for n, v in VALUES.items()}
    columns["st"] = [None if i == 1 else {"k": i, "a.b": "x" if i % 2 else None} for i in range(count)]
    return pa.table({n: pa.array(columns[n], SCHEMA.field(n).type) for n in SCHEMA.names}, schema=SCHEMA)


ROWS = sample_rows()
TABLE_SCHEMA = schema_from_arrow(SCHEMA)


def answers(expression: pc.Expression) -> list[bool | None]:
    got: list[bool | None] = ds.dataset(ROWS).to_table(columns={"p": expression}).column("p").to_pylist()
    return got


@settings(max_examples=50, deadline=None)
@given(EXPRESSIONS)
def test_a_translation_answers_as_the_expression(expression: pc.Expression) -> None:
    translation = translate_arrow_expression(expression, TABLE_SCHEMA)
    if translation.where is None:
        assert not translation.is_complete
        return
    wanted, got = answers(expression), arrow_predicate(translation.where, TABLE_SCHEMA)(ROWS).to_pylist()
    if translation.is_complete:
        assert got == wanted
    else:
        assert all(g is True for g, w in zip(got, wanted, strict=True) if w is True)


def test_ordinary_expressions_are_translated() -> None:
    """The test above would pass if nothing ever was."""
    for name, values in VALUES.items():
        for value in values:
            literal = pc.scalar(pa.scalar(value, SCHEMA.field(name).type))
            is_nan = isinstance(value, float) and math.isnan(value)
            for op in COMPARE:
                found = translate_arrow_expression(op(column(name), literal), TABLE_SCHEMA)
                assert found.is_complete is not is_nan, (name, value)
    for expression in (
        column("s").isin(["a", "b"]),
        ~(column("x") > 1.0) | column("d").is_null(),
        column("s").isin(["a"]) & column("t"),
        pc.field("st", "k") == 3,
        column("x").is_nan(),
    ):
        assert translate_arrow_expression(expression, TABLE_SCHEMA).is_complete
    # pyarrow 25 cannot tell others of a prefix.
    prefix = translate_arrow_expression(pc.starts_with(column("s"), "a"), TABLE_SCHEMA)
    assert prefix.is_complete is (int(pa.__version__.split(".")[0]) > 25)


def test_pruned_scans_and_data_sets_return_what_arrow_filters(tmp_path_factory: Any) -> None:
    root: Path = tmp_path_factory.mktemp("arrow") / "table"
    table = DeltaTable(root)
    numbered = ROWS.append_column("nr", pa.array(range(ROWS.num_rows)))
    long = pc.if_else(pc.equal(numbered["s"], "ab"), "x" * 40 + "\U0010ffff", numbered["s"])
    numbered = numbered.set_column(numbered.column_names.index("s"), "s", long)
    for index in range(ROWS.num_rows):
        table.append(numbered.slice(index, 1))
    table.append(numbered.slice(2, 2))
    table.append(numbered)
    snapshot = table.snapshot()
    everything, dataset = snapshot.scan().to_arrow(), snapshot.to_pyarrow_dataset()
    # It takes the bounds of floats in Parquet for those of all values, though they leave out NaN.
    plain = ds.dataset(dataset.files, schema=dataset.schema, filesystem=dataset.filesystem)
    opened: set[int] = set()

    @settings(max_examples=7, deadline=None)
    @given(EXPRESSIONS)
    def check(expression: pc.Expression) -> None:
        def numbers(rows: Any, **options: Any) -> list[int]:
            found: list[int] = rows.to_table(**options).column("nr").to_pylist()
            return sorted(found)

        wanted = sorted(everything.filter(expression).column("nr").to_pylist())
        found = snapshot.scan(columns=["nr"], where=expression).to_arrow()
        assert sorted(found.column("nr").to_pylist()) == wanted
        by_arrow = numbers(plain, filter=expression)
        assert numbers(dataset, filter=expression) == by_arrow
        fragments = list(dataset.get_fragments(expression))
        assert sorted(n for f in fragments for n in numbers(f, schema=dataset.schema, filter=expression)) == by_arrow
        is_complete = translate_arrow_expression(expression, TABLE_SCHEMA).is_complete
        of_where = snapshot.to_pyarrow_dataset(where=expression)
        assert numbers(of_where) == (wanted if is_complete else by_arrow)
        assert of_where.count_rows() == len(numbers(of_where))
        opened.add(len(fragments))

    check()
    assert len(opened) > 2, "It would pass if no file were ever left out"
