"""Slowly changing dimensions of type 2: each change of a key's row closes the version before it and opens another.

The table has the columns of the rows, and three more: `valid_from`, `valid_to` (null while a version is the last one of
its key) and `is_current`. A sequence column orders the versions; they are valid from its value on. A key ends, without
another version, where a row is marked as a deletion, or is missing from a snapshot of all keys. One merge closes and
opens versions, so the step is one commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from delta_orch.delta_table import TableSnapshot
from delta_orch.engines.base import (
    ComputedColumn,
    Engine,
    JoinSide,
    Measure,
    Relation,
    WindowColumn,
    as_they_are,
)
from delta_orch.engines.select import EngineChoice, select_engine
from delta_orch.errors import ConflictError, ConstraintViolationError, InvalidRequestError, SchemaMismatchError
from delta_orch.expressions.column_names import resolve_column_names
from delta_orch.expressions.nodes import Choice, Coerced, Column, Comparison, Expression, IsNull, Literal, Not
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.expressions.tree import any_of, columns_of, conjunction, disjunction, is_not_true
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from delta_orch.protocol.arrow_building import python_rows, schema_to_arrow
from delta_orch.protocol.types import BOOLEAN, INTEGER, VARIANT, MapType, StructField, StructType, types_of
from delta_orch.verbs.merge.clauses import Action, Clause, Kind
from delta_orch.verbs.merge.run import MergeRequest, merge
from delta_orch.verbs.merge.sides import settled
from delta_orch.verbs.overwrite import overwrite
from delta_orch.writing.sources import open_source
from delta_orch.writing.target import WriteOptions

VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
OWN_COLUMNS = (VALID_FROM, VALID_TO, IS_CURRENT)


_GONE, _KNOWN, _PROBLEM = Column(("_delta_orch_gone",)), Column(("_delta_orch_known",)), "_delta_orch_problem"
_BEFORE = "_delta_orch_before_{}"
"""Of a column: what the version before has in it."""
_FALSE, _TRUE = Literal(False, BOOLEAN), Literal(True, BOOLEAN)


@dataclass(frozen=True, slots=True)
class Deletes:
    """What ends a key.

    Attributes:
        marker: A boolean column of the rows, which the table does not have: true in a row that ends its key.
        full_snapshot: The rows are all there are at their sequence, so what is missing has ended. All have one
            sequence; or one in each of `within`, where those are about the sequence.
        within: Where the rows must lie: predicates of which no two are true for a row. They are about keys, and a
            snapshot then has the keys that lie in them; or about the sequence.
    """

    marker: str | None = None
    full_snapshot: bool = False
    within: tuple[Expression, ...] = ()


NO_DELETES = Deletes()


def apply_scd2(
    log: TableLog,
    before: TableSnapshot | None,
    data: object,
    keys: Sequence[str],
    sequence_by: str,
    engine: EngineChoice,
    options: WriteOptions,
    deletes: Deletes = NO_DELETES,
) -> CommitResult:
    """Add the versions that the rows bring.

    Several rows of one key are versions in the order of the sequence column. A row that changes nothing of its key adds
    nothing, and neither does one that is there already.

    Args:
        before: The newest version; None where this write creates the table.
        keys: The columns that identify what has versions. Not null.
        sequence_by: The column whose value says since when a row is valid. Not null.
        deletes: What ends a key, and where the rows must lie. What a snapshot leaves out is worked out from the whole
            table: stage the write, and publish it if the table is unchanged.

    Returns: `skipped` where no row changes anything.

    Raises:
        ConstraintViolationError: A key or a sequence is null, two rows of one key and sequence differ, or a row comes
            late: its key has a version that is as new or newer, or ended then or later. A row lies outside of `within`.
            A snapshot is empty, or has several sequences. Nothing was committed.
        InvalidRequestError: `within` is neither about the keys nor about the sequence.
        SchemaMismatchError, ColumnNotFoundError: The rows have other columns than the table, or one of a type that does
            not compare (map, variant).
        ConflictError: Another commit changed rows of these keys.
        Otherwise as `DeltaTable.merge`.
    """
    chosen = select_engine(data, engine)
    opened = open_source(chosen, data, None if before is None else before.schema)
    with chosen.statement(), settled(chosen, data, opened) as rows, ExitStack() as kept:
        versions = _Versions(chosen, before, rows, keys, sequence_by, deletes, kept)
        versions.ensure_in_order()
        return versions.write(log, options)


class _Versions:
    """The rows of a batch, and what the table has of their keys."""

    def __init__(
        self,
        engine: Engine,
        before: TableSnapshot | None,
        rows: Relation,
        keys: Sequence[str],
        sequence_by: str,
        deletes: Deletes,
        kept: ExitStack,
    ) -> None:
        self._engine, self._before, self._deletes = engine, before, deletes
        schema = engine.schema(rows)
        if clash := [name for name in schema.names if name.lower() in OWN_COLUMNS]:
            raise SchemaMismatchError(
                f"The rows have a column {clash[0]}, which the mode scd2 fills in",
                remedy="Rename it; the sequence column says since when a row is valid",
            )
        schema, marker = _without_marker(schema, deletes.marker)
        if before is not None:
            given, schema = schema.names, _without_own(before.schema)
            _ensure_same_columns(given, schema.names)
            wanted = schema if marker is None else replace(schema, fields=(*schema.fields, marker))
            rows = engine.conform(rows, wanted)
        self._schema = schema
        self._keys = resolve_column_names(keys, schema, "merge_keys")
        (self._sequence,) = resolve_column_names([sequence_by], schema, "sequence_by")
        if self._sequence in self._keys:
            raise InvalidRequestError("The sequence column is one of the keys", remedy="Name another one")
        self._others = [n for n in schema.names if n not in self._keys and n != self._sequence]
        _ensure_comparable(schema)
        self._within = tuple(resolve_predicate(one, schema) for one in deletes.within)
        self._is_about_keys = not self._within or self._looks_at() <= set(self._keys)
        self._given = rows
        self._present = self._open_versions()
        self._history = self._scan([*self._keys, VALID_FROM, VALID_TO], None)
        batch = self._with_deletions(marker)
        if deletes.full_snapshot:
            batch = self._with_missing(kept.enter_context(engine.evaluated(batch)))
        if deletes.full_snapshot or marker is not None:
            # Requests read it several times, and would work it out anew.
            batch = kept.enter_context(engine.evaluated(batch))
        self._batch = batch

    def _looks_at(self) -> set[str]:
        names = {column.path[0] for one in self._within for column in columns_of(one)}
        if not names <= set(self._keys) and names != {self._sequence}:
            raise InvalidRequestError(
                f"The partitions are about {', '.join(sorted(names))}, so versions of a key can lie in several",
                cause="A version is in order with the others of its key alone",
                remedy=f"Partition by columns of merge_keys ({', '.join(self._keys)}), or by the sequence column "
                f"({self._sequence})",
            )
        return names

    def _with_deletions(self, marker: StructField | None) -> Relation:
        """The rows, and whether they end their key."""
        gone: Expression = _FALSE if marker is None else Comparison("<=>", Column((marker.name,)), _TRUE)
        columns = as_they_are([*self._keys, self._sequence])
        for name in self._others:
            # A row that ends a key has no values beside the key and the sequence.
            value: Expression = Column((name,))
            columns.append(ComputedColumn(name, value if marker is None else Choice(((Not(gone), value),))))
        return self._engine.project(self._given, [*columns, _computed(_GONE, gone)])

    def _with_missing(self, batch: Relation) -> Relation:
        """Beside the rows of a snapshot the ends of the keys that it leaves out."""
        engine, keys, sequence = self._engine, as_they_are(self._keys), as_they_are([self._sequence])
        owned = any_of(self._within) if self._within and self._is_about_keys else None
        table = self._open_versions([*self._keys], owned)
        every_key = engine.aggregate(engine.union([engine.project(table, keys), engine.project(batch, keys)]), keys, [])
        moments = engine.aggregate(batch, sequence, [])
        places = [*_of("k", self._keys), *_of("s", [self._sequence])]
        every_place = engine.join(JoinSide("k", every_key), JoinSide("s", moments), _TRUE, "inner", places)
        names = [*self._keys, self._sequence]
        columns = [*_of("p", names), _computed(_GONE, _TRUE)]
        same_place = _equal("p", "b", names)
        missing = engine.join(JoinSide("p", every_place), JoinSide("b", batch), same_place, "anti", columns)
        return engine.union([batch, engine.conform(missing, engine.schema(batch))])

    def _scan(self, columns: Sequence[str] | None, where: Expression | None) -> Relation:
        if self._before is None:
            empty = schema_to_arrow(scd2_schema(self._schema, self._sequence)).empty_table()
            return self._engine.relation(empty if columns is None else empty.select(list(columns)))
        return open_source(self._engine, self._before.scan(columns, where))

    def _open_versions(self, columns: Sequence[str] | None = None, where: Expression | None = None) -> Relation:
        return self._scan(columns, conjunction(IsNull(Column((VALID_TO,))), where))

    # Rows that cannot be

    def ensure_in_order(self) -> None:
        """Raises ConstraintViolationError: See `apply_scd2`."""
        keys, names = self._keys, [*self._keys, self._sequence]
        at, valid_from, valid_to = Column(("b", self._sequence)), Column(("h", VALID_FROM)), Column(("h", VALID_TO))
        gone, other_gone = Column(("b", *_GONE.path)), Column(("h", *_GONE.path))
        self._ensure_within()
        is_null = disjunction(*(IsNull(Column((name,))) for name in names))
        ended = self._matching(
            self._batch, self._history, _equal("b", "h", keys), Comparison("=", valid_to, at), Not(gone)
        )
        starts = conjunction(_equal("b", "h", keys), Comparison("=", valid_from, at))
        # The error is about the first of them that there is.
        self._refuse(
            {
                "A key or the sequence of a row is null": self._engine.filter(self._batch, is_null),
                "Two rows of one key have the same sequence and differ": self._matching(
                    self._batch,
                    self._batch,
                    _equal("b", "h", names),
                    disjunction(Comparison("!=", gone, other_gone), *self._differences("b", "h")),
                ),
                "A row comes late: the table has a newer version of its key": self._matching(
                    self._batch,
                    self._history,
                    _equal("b", "h", keys),
                    disjunction(Comparison("<", at, valid_from), Comparison("<", at, valid_to)),
                ),
                "The table has another row of this key and sequence": self._matching(
                    self._batch, self._present, starts, disjunction(gone, *self._differences("b", "h"))
                ),
                "The key of a row has ended at its sequence": self._engine.join(
                    JoinSide("b", ended), JoinSide("h", self._history), starts, "anti", _of("b", names)
                ),
            }
        )

    def _matching(self, rows: Relation, others: Relation, *on: Expression) -> Relation:
        """The keys and sequences of rows (`b`) for which there is another row (`h`)."""
        names = [*self._keys, self._sequence]
        return self._engine.join(JoinSide("b", rows), JoinSide("h", others), conjunction(*on), "semi", _of("b", names))

    def _ensure_within(self) -> None:
        """Rows lie where they must, and a snapshot says of when it is."""
        engine = self._engine
        if self._within:
            outside = engine.filter(self._given, is_not_true(any_of(self._within)))
            self._refuse({"A row lies outside of the run's partitions": outside})
        if not self._deletes.full_snapshot:
            return
        for one in (None,) if self._is_about_keys else self._within:
            part = self._given if one is None else engine.filter(self._given, one)
            moments = engine.to_arrow(engine.aggregate(part, as_they_are([self._sequence]), []), limit=2)
            if moments.num_rows != 1:
                raise ConstraintViolationError(
                    "A snapshot has rows of several sequences" if moments.num_rows else "A snapshot is empty",
                    cause="What is missing ends at the sequence of the rows, and each partition is one snapshot",
                    remedy="Give every row of a snapshot one sequence; nothing was committed",
                )

    def _refuse(self, problems: Mapping[str, Relation]) -> None:
        """Rows by what is wrong with them, which have keys and a sequence: there may be none."""
        engine, number = self._engine, Column((_PROBLEM,))
        every = [
            engine.project(rows, [ComputedColumn(_PROBLEM, Literal(place, INTEGER))])
            for place, rows in enumerate(problems.values())
        ]
        least = engine.to_arrow(engine.aggregate(engine.union(every), [], [Measure(_PROBLEM, "min", number)]))
        if (place := least.column(0)[0].as_py()) is None:
            return
        problem, rows = list(problems.items())[place]
        columns = as_they_are([*self._keys, self._sequence])
        (row,) = python_rows(engine.to_arrow(engine.project(rows, columns), limit=1))
        raise ConstraintViolationError(
            problem, cause=f"It is {row}", remedy="Correct the batch; nothing was committed", row=row
        )

    # Rows that change

    def write(self, log: TableLog, options: WriteOptions) -> CommitResult:
        """Close and open versions, in one commit."""
        changes = self._changes()
        # Spark's relation is a value that it takes; the local one's is not.
        source = changes if self._engine.name == "spark" else self._engine.to_reader(changes)
        if self._before is None:
            return overwrite(log, None, source, None, "static", None, self._engine, options)
        return self._merge(log, self._before, source, options)

    def _merge(self, log: TableLog, before: TableSnapshot, source: object, options: WriteOptions) -> CommitResult:
        # Another writer's version of the key must conflict, wherever it begins: `coalesce` keeps the time out of what
        # the merge is known to have read.
        same_start = f"coalesce(t.{VALID_FROM} = s.{VALID_FROM}, false)"
        same_keys = " AND ".join(f"t.{name} = s.{name}" for name in map(quote_identifier, self._keys))
        request = MergeRequest(source, f"{same_keys} AND {same_start}", "s", "t", self._engine)
        about: CommitOptions = {n: options[n] for n in CommitOptions.__annotations__ if n in options}  # type: ignore
        about["read_version"] = before.version
        names = [*self._schema.names, *OWN_COLUMNS]
        closes = {VALID_TO: f"s.{VALID_TO}", IS_CURRENT: "false"}
        clauses = (
            Clause(Kind.MATCHED, Action.UPDATE, f"t.{VALID_TO} IS NULL", closes),
            Clause(
                Kind.NOT_MATCHED,
                Action.INSERT,
                values={quote_identifier(name): f"s.{quote_identifier(name)}" for name in names},
            ),
        )
        try:
            return merge(log, before, request, clauses, about)
        except ConflictError as e:
            # What was worked out from the table can be worked out again.
            raise e.__cause__ or e from None

    def _changes(self) -> Relation:
        """What becomes of the versions: those that are closed, and new ones, with where they end. Of a row that is
        there twice the second changes nothing."""
        engine, names = self._engine, self._schema.names
        keys, start, end = [Column((key,)) for key in self._keys], Column((VALID_FROM,)), Column((VALID_TO,))
        at = Column(("b", self._sequence))
        same_start = Comparison("=", Column(("c", VALID_FROM)), at)
        fresh = engine.join(
            JoinSide("b", self._batch),
            JoinSide("c", self._present),
            conjunction(_equal("c", "b", self._keys), same_start),
            "anti",
            [*_of("b", names), _computed(start, at), *_of("b", _GONE.path), _computed(_KNOWN, _FALSE)],
        )
        known = engine.join(
            JoinSide("c", self._present),
            JoinSide("b", self._batch),
            _equal("b", "c", self._keys),
            "semi",
            [*_of("c", [*names, VALID_FROM]), _computed(_GONE, _FALSE), _computed(_KNOWN, _TRUE)],
        )
        # A key has at most one row at a place: what is there twice, or otherwise, is refused.
        before = {name: Column((_BEFORE.format(number),)) for number, name in enumerate(self._others)}
        gone_before = Column((_BEFORE.format("gone"),))
        looked_at = {gone_before: _GONE, **{label: Column((name,)) for name, label in before.items()}}
        columns = [WindowColumn(label.path[0], "lag", value) for label, value in looked_at.items()]
        neighbors = engine.window(engine.union([fresh, known]), keys, [start], columns)
        differs = disjunction(*(_differ(Column((name,)), label) for name, label in before.items()))
        changes = disjunction(Comparison("!=", gone_before, _GONE), conjunction(Not(_GONE), differs))
        is_step = disjunction(
            conjunction(IsNull(gone_before), Not(_GONE)), conjunction(Not(IsNull(gone_before)), changes)
        )
        steps = engine.project(
            engine.filter(neighbors, is_step), as_they_are([*names, VALID_FROM, *_GONE.path, *_KNOWN.path])
        )
        versions = engine.window(steps, keys, [start], [WindowColumn(VALID_TO, "lead", start)])
        kept = engine.filter(versions, conjunction(Not(_GONE), disjunction(Not(_KNOWN), Not(IsNull(end)))))
        own = [*as_they_are([*names, VALID_FROM, VALID_TO]), ComputedColumn(IS_CURRENT, IsNull(end))]
        return engine.project(kept, own)

    def _differences(self, one: str, other: str) -> list[Expression]:
        return [_differ(Column((one, name)), Column((other, name))) for name in self._others]


def _of(alias: str, names: Iterable[str]) -> list[ComputedColumn]:
    """Columns of a side of a join, under their own names."""
    return [ComputedColumn(name, Column((alias, name))) for name in names]


def _computed(column: Column, value: Expression) -> ComputedColumn:
    return ComputedColumn(column.path[0], value)


def _equal(one: str, other: str, names: Iterable[str]) -> Expression:
    return conjunction(*(Comparison("=", Column((one, name)), Column((other, name))) for name in names))


def _differ(one: Column, other: Column) -> Expression:
    # Arrow does not compare nested values: an engine does.
    return Not(Coerced(Comparison("<=>", one, other)))


def scd2_schema(schema: StructType, sequence_by: str) -> StructType:
    """The columns of a table that this mode fills, from those of the rows."""
    sequence = schema.find(sequence_by)
    assert sequence is not None
    kind = sequence.data_type
    own = (StructField(VALID_FROM, kind), StructField(VALID_TO, kind), StructField(IS_CURRENT, BOOLEAN))
    return replace(schema, fields=(*schema.fields, *own))


def _without_marker(schema: StructType, marker: str | None) -> tuple[StructType, StructField | None]:
    """The columns that are kept, and the one that marks deletions."""
    if marker is None:
        return schema, None
    field = schema.find(marker)
    if field is None or str(field.data_type) != "boolean":
        raise SchemaMismatchError(
            f"The column {marker}, which marks deletions, is {'missing' if field is None else str(field.data_type)}",
            remedy="Give a boolean column: true in a row that ends its key",
        )
    return replace(schema, fields=tuple(one for one in schema.fields if one is not field)), field


def _ensure_comparable(schema: StructType) -> None:
    for field in schema:
        if any(isinstance(part, MapType) or part == VARIANT for part in types_of(field.data_type)):
            raise SchemaMismatchError(
                f"The mode scd2 cannot tell whether {field.name} ({field.data_type}) has changed",
                cause="Maps and variants do not compare",
                remedy="Give arrays of structs (key, value) instead of maps, and texts or structs instead of variants",
            )


def _without_own(schema: StructType) -> StructType:
    if missing := [name for name in OWN_COLUMNS if schema.find(name) is None]:
        raise SchemaMismatchError(
            f"The table has no column {missing[0]}",
            cause="The mode scd2 keeps versions in the columns valid_from, valid_to and is_current",
            remedy="Let the mode create the table",
        )
    return replace(schema, fields=tuple(f for f in schema.fields if f.name.lower() not in OWN_COLUMNS))


def _ensure_same_columns(given: Sequence[str], wanted: Sequence[str]) -> None:
    folded, known = ({name.lower() for name in names} for names in (given, wanted))
    if folded != known:
        raise SchemaMismatchError(
            "The rows have other columns than the table",
            cause=f"Missing: {sorted(known - folded) or 'none'}, not in the table: {sorted(folded - known) or 'none'}",
            remedy="Give all columns; alter the table to add one",
        )
