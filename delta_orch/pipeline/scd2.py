"""Slowly changing dimensions of type 2: each change of a key's row closes the version before it and opens another.

The table has the columns of the rows, and three more: `valid_from`, `valid_to` (null while a version is the last one of
its key) and `is_current`. A sequence column orders the versions; they are valid from its value on. A key ends, without
another version, where a row is marked as a deletion, or is missing from a snapshot of all keys. One merge closes and
opens versions, so the step is one commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from delta_orch.engines.base import Engine, Relation
from delta_orch.engines.select import EngineChoice, select_engine
from delta_orch.errors import ConflictError, ConstraintViolationError, InvalidRequestError, SchemaMismatchError
from delta_orch.expressions.column_names import resolve_column_names
from delta_orch.expressions.nodes import Column, Expression, IsNull
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.expressions.tree import any_of, columns_of, conjunction, is_not_true
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from delta_orch.protocol.arrow_building import python_rows, schema_to_arrow
from delta_orch.protocol.types import BOOLEAN, VARIANT, MapType, StructField, StructType, types_of
from delta_orch.table_snapshot import TableSnapshot
from delta_orch.verbs.merge.clauses import Action, Clause, Kind
from delta_orch.verbs.merge.run import MergeRequest, merge
from delta_orch.verbs.merge.sides import settled
from delta_orch.verbs.overwrite import overwrite
from delta_orch.writing.sources import open_source
from delta_orch.writing.target import WriteOptions

VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
OWN_COLUMNS = (VALID_FROM, VALID_TO, IS_CURRENT)


_GONE, _KNOWN, _PROBLEM = "_delta_orch_gone", "_delta_orch_known", "_delta_orch_problem"
_BEFORE = "_delta_orch_before_{}"
"""Of a column: what the version before has in it."""


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
        self._relations: dict[str, Relation] = {
            "given": rows,
            "present": self._present(),
            "history": self._scan([*self._keys, VALID_FROM, VALID_TO], None),
        }
        batch = self._batch(None if marker is None else self._engine.quoted(marker.name))
        if deletes.full_snapshot:
            batch = self._with_missing(kept.enter_context(engine.evaluated(batch)))
        if deletes.full_snapshot or marker is not None:
            # Queries read it several times, and would work it out anew.
            batch = kept.enter_context(engine.evaluated(batch))
        self._relations["batch"] = batch

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

    def _batch(self, marker: str | None) -> Relation:
        """The rows, and whether they end their key."""
        gone = "false" if marker is None else f"coalesce({marker}, false)"
        # What a row that ends a key says beside the key and the sequence is nobody's concern.
        said = [
            n if marker is None else f"CASE WHEN {gone} THEN NULL ELSE {n} END AS {n}"
            for n in map(self._engine.quoted, self._others)
        ]
        columns = ", ".join([self._list(*self._keys, self._sequence), *said, f"{gone} AS {_GONE}"])
        return self._engine.sql(f"SELECT {columns} FROM given", self._relations)

    def _with_missing(self, batch: Relation) -> Relation:
        """Beside the rows of a snapshot the ends of the keys that it leaves out."""
        keys, at = self._list(*self._keys), self._engine.quoted(self._sequence)
        own = ", ".join(f"p.{n}" for n in map(self._engine.quoted, self._keys))
        others = "".join(f", b.{n}" for n in map(self._engine.quoted, self._others))
        owned = any_of(self._within) if self._within and self._is_about_keys else None
        every = {"batch": batch, "open": self._present([*self._keys], owned)}
        return self._engine.sql(
            f"""
WITH every_key AS (SELECT {keys} FROM open UNION SELECT {keys} FROM batch),
places AS (SELECT k.*, s.{at} FROM every_key k CROSS JOIN (SELECT DISTINCT {at} FROM batch) s)
SELECT {keys}, {at}{"".join(f", {n}" for n in map(self._engine.quoted, self._others))}, {_GONE} FROM batch
UNION ALL
SELECT {own}, p.{at}{others}, true AS {_GONE} FROM places p
LEFT JOIN batch b ON {self._equal("b", "p", [*self._keys, self._sequence])} WHERE b.{_GONE} IS NULL
""",
            every,
        )

    def _scan(self, columns: Sequence[str] | None, where: Expression | None) -> Relation:
        if self._before is None:
            empty = schema_to_arrow(scd2_schema(self._schema, self._sequence)).empty_table()
            return self._engine.relation(empty if columns is None else empty.select(list(columns)))
        return open_source(self._engine, self._before.scan(columns, where))

    def _present(self, columns: Sequence[str] | None = None, where: Expression | None = None) -> Relation:
        return self._scan(columns, conjunction(IsNull(Column((VALID_TO,))), where))

    # Rows that cannot be

    def ensure_in_order(self) -> None:
        """Raises ConstraintViolationError: See `apply_scd2`."""
        keys, sequence = self._keys, self._sequence
        columns, at = self._list(*keys, sequence), self._engine.quoted(sequence)
        self._ensure_within(columns)
        some_null = " OR ".join(f"{self._engine.quoted(name)} IS NULL" for name in (*keys, sequence))
        of_batch = ", ".join(f"b.{self._engine.quoted(name)}" for name in (*keys, sequence))
        # The first of them that there is, is told.
        self._refuse(
            {
                "A key or the sequence of a row is null": f"SELECT {columns} FROM batch WHERE {some_null}",
                "Two rows of one key have the same sequence and differ": f"SELECT {of_batch} "
                f"FROM batch b JOIN batch o ON {self._equal('b', 'o', [*keys, sequence])} "
                f"WHERE b.{_GONE} <> o.{_GONE} OR NOT ({self._same('b', 'o')})",
                "A row comes late: the table has a newer version of its key": f"SELECT {of_batch} "
                f"FROM batch b JOIN history h ON {self._equal('b', 'h', keys)} "
                f"WHERE b.{at} < h.{VALID_FROM} OR b.{at} < h.{VALID_TO}",
                "The table has another row of this key and sequence": f"SELECT {of_batch} "
                f"FROM batch b JOIN present c ON {self._equal('b', 'c', keys)} AND c.{VALID_FROM} = b.{at} "
                f"WHERE b.{_GONE} OR NOT ({self._same('b', 'c')})",
                "The key of a row has ended at its sequence": f"SELECT {of_batch} "
                f"FROM batch b JOIN history h ON {self._equal('b', 'h', keys)} AND h.{VALID_TO} = b.{at} "
                f"ANTI JOIN history n ON {self._equal('b', 'n', keys)} AND n.{VALID_FROM} = b.{at} WHERE NOT b.{_GONE}",
            }
        )

    def _ensure_within(self, columns: str) -> None:
        """Rows lie where they must, and a snapshot says of when it is."""
        engine, given = self._engine, self._relations["given"]
        if self._within:
            outside = engine.filter(given, is_not_true(any_of(self._within)))
            self._refuse(
                {"A row lies outside of the run's partitions": f"SELECT {columns} FROM outside"}, outside=outside
            )
        if not self._deletes.full_snapshot:
            return
        at = self._engine.quoted(self._sequence)
        for one in (None,) if self._is_about_keys else self._within:
            part = given if one is None else engine.filter(given, one)
            found = engine.to_arrow(engine.sql(f"SELECT DISTINCT {at} FROM part", {"part": part}), limit=2)
            if found.num_rows != 1:
                raise ConstraintViolationError(
                    "A snapshot has rows of several sequences" if found.num_rows else "A snapshot is empty",
                    cause="What is missing ends at the sequence of the rows, and each partition is one snapshot",
                    remedy="Give every row of a snapshot one sequence; nothing was committed",
                )

    def _refuse(self, problems: Mapping[str, str], **more: Relation) -> None:
        """Queries by what is wrong with their rows, which have keys and a sequence: no row may be there."""
        every = " UNION ALL ".join(
            f"SELECT {n} AS {_PROBLEM}, p.* FROM ({q}) p" for n, q in enumerate(problems.values())
        )
        query = f"SELECT * FROM ({every}) e ORDER BY {_PROBLEM} LIMIT 1"
        found = self._engine.to_arrow(self._engine.sql(query, {**self._relations, **more}))
        for row in python_rows(found):
            problem = list(problems)[row.pop(_PROBLEM)]
            raise ConstraintViolationError(
                problem, cause=f"It is {row}", remedy="Correct the batch; nothing was committed", row=row
            )

    # Rows that change

    def write(self, log: TableLog, options: WriteOptions) -> CommitResult:
        """Close and open versions, in one commit."""
        changes = self._engine.sql(self._query(), self._relations)
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

    def _query(self) -> str:
        """What becomes of the versions: those that are closed, and new ones, with where they end. Of a row that is
        there twice the second changes nothing."""
        keys, at, columns = self._keys, self._engine.quoted(self._sequence), self._schema.names
        of = {alias: ", ".join(f"{alias}.{self._engine.quoted(name)}" for name in columns) for alias in "bc"}
        in_line = f"OVER (PARTITION BY {self._list(*keys)} ORDER BY {VALID_FROM})"
        # A key has at most one row at a place: what is there twice, or otherwise, is refused.
        before = {name: self._engine.quoted(_BEFORE.format(number)) for number, name in enumerate(self._others)}
        gone_before = self._engine.quoted(_BEFORE.format("gone"))
        looked_at = "".join(
            f", lag({self._engine.quoted(name)}) {in_line} AS {label}" for name, label in before.items()
        )
        tests = (f"{self._engine.quoted(name)} IS NOT DISTINCT FROM {label}" for name, label in before.items())
        same = " AND ".join(tests) or "true"
        return f"""
WITH fresh AS (
  SELECT {of["b"]}, b.{at} AS {VALID_FROM}, b.{_GONE} FROM batch b
  ANTI JOIN present c ON {self._equal("c", "b", keys)} AND c.{VALID_FROM} = b.{at}
),
line AS (
  SELECT {self._list(*columns)}, {VALID_FROM}, {_GONE}, false AS {_KNOWN} FROM fresh
  UNION ALL
  SELECT {of["c"]}, c.{VALID_FROM}, false AS {_GONE}, true AS {_KNOWN} FROM present c
  SEMI JOIN batch b ON {self._equal("b", "c", keys)}
),
neighbors AS (SELECT *, lag({_GONE}) {in_line} AS {gone_before}{looked_at} FROM line),
steps AS (
  SELECT {self._list(*columns)}, {VALID_FROM}, {_GONE}, {_KNOWN} FROM neighbors WHERE NOT
  CASE WHEN {gone_before} IS NULL THEN {_GONE} ELSE {gone_before} = {_GONE} AND ({_GONE} OR ({same})) END
),
versions AS (SELECT *, lead({VALID_FROM}) {in_line} AS {VALID_TO} FROM steps)
SELECT {self._list(*columns)}, {VALID_FROM}, {VALID_TO}, {VALID_TO} IS NULL AS {IS_CURRENT} FROM versions
WHERE NOT {_GONE} AND (NOT {_KNOWN} OR {VALID_TO} IS NOT NULL)
"""

    def _same(self, one: str, other: str) -> str:
        names = map(self._engine.quoted, self._others)
        return " AND ".join(f"{one}.{name} IS NOT DISTINCT FROM {other}.{name}" for name in names) or "true"

    def _list(self, *names: str) -> str:
        return ", ".join(map(self._engine.quoted, names))

    def _equal(self, one: str, other: str, names: Sequence[str]) -> str:
        return " AND ".join(f"{one}.{name} = {other}.{name}" for name in map(self._engine.quoted, names))


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
