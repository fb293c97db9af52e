"""`apply_changes`: applies change events in any order to a table of the newest rows or of all versions.

An event gives a key a new row, or deletes the key, at a point of a sequence. The content of the table depends only on
the set of events. Their order, their batches and repeated events make no difference.

- `scd=1` keeps the event with the greatest sequence of each key. A deleted key leaves a tombstone, a row with the key,
    the sequence and the time in `_deleted_at`. It prevents an older row that arrives later from bringing the key back.
- `scd=2` keeps every event. A version is valid from its sequence to the sequence of the next event. A deletion is a row
    with `is_deleted` whose validity is empty.

The rows of the table with keys of the batch are read once. One merge by keys then writes changed and new rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

from delta_orch.engines.base import ComputedColumn, Engine, JoinKind, JoinSide, Relation, WindowColumn, as_they_are
from delta_orch.engines.select import EngineChoice, select_engine
from delta_orch.errors import (
    ConflictError,
    ConstraintViolationError,
    InvalidRequestError,
    LateChangeError,
    SchemaMismatchError,
)
from delta_orch.expressions.column_names import resolve_column_names
from delta_orch.expressions.nodes import Choice, Coerced, Column, Comparison, Expression, IsNull, Literal, Not
from delta_orch.expressions.resolve import resolve_expression, resolve_predicate
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.expressions.tree import any_of, columns_of, conjunction, disjunction, is_not_true
from delta_orch.log.files.txn import is_wholly_stale, stale_among
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import SERIALIZABLE, CommitResult, parse_txns
from delta_orch.protocol.arrow_building import python_rows, schema_to_arrow
from delta_orch.protocol.schema_check import ensure_schema_fits
from delta_orch.protocol.types import (
    BOOLEAN,
    INTEGER,
    TIMESTAMP,
    StructField,
    StructType,
    has_equality,
)
from delta_orch.scan.scan import Scan
from delta_orch.table.schema_evolution import as_created_from_data
from delta_orch.verbs.change_envelopes import CHANGE_TYPE, opened
from delta_orch.verbs.change_events import Changes
from delta_orch.verbs.merge.candidates import find_candidates, has_exact_bounds
from delta_orch.verbs.merge.clauses import Action, Clause, Kind
from delta_orch.verbs.merge.run import MergeRequest, merge
from delta_orch.verbs.merge.sides import SOURCE, TARGET, Sides, filled_up, settled
from delta_orch.verbs.overwrite import overwrite
from delta_orch.writing.sources import open_source
from delta_orch.writing.target import WriteOptions, existing_target, split_options

VALID_FROM, VALID_TO, IS_CURRENT, IS_DELETED = "valid_from", "valid_to", "is_current", "is_deleted"
DELETED_AT = "_deleted_at"

_GONE = Column(("_delta_orch_gone",))
_KNOWN, _PROBLEM, _BEFORE = Column(("_delta_orch_known",)), "_delta_orch_problem", "_delta_orch_before_{}"
_ENDED, _NEXT, _DROPPED = Column(("_delta_orch_ended",)), Column(("_delta_orch_next",)), "_delta_orch_dropped"
_FALSE, _TRUE = Literal(False, BOOLEAN), Literal(True, BOOLEAN)


def apply_changes(
    log: TableLog,
    before: Snapshot | None,
    data: object,
    changes: Changes,
    engine: EngineChoice,
    options: WriteOptions,
) -> CommitResult:
    """Apply change events, in one commit. See `DeltaTable.apply_changes`.

    Args:
        before: The newest version. None if this write creates the table.

    Raises: As `DeltaTable.apply_changes`.
    """
    changes.ensure_sound()
    chosen = select_engine(data, engine)
    definition, about = split_options(options)
    if before is not None:
        existing_target(before, definition.get("partition_by"))
        txns = parse_txns(about.get("txn"))
        recorded = before.txn_versions([txn.app_id for txn in txns]) if txns else {}
        if is_wholly_stale(txns, stale_among(txns, recorded)):
            nothing = MergeRequest(schema_to_arrow(before.schema).empty_table(), "false", "s", "t")
            return merge(log, before, nothing, [Clause(Kind.NOT_MATCHED, Action.INSERT)], about)
    given = open_source(chosen, data, None if before is None else before.schema)
    with chosen.statement(), settled(chosen, data, given) as rows, ExitStack() as kept:
        batch = _Batch(chosen, before, rows, changes, kept)
        source, clauses, on = batch.versions() if changes.scd == 2 else batch.newest()
        if before is None:
            # If another writer creates the table meanwhile, its rows may have these keys.
            first: WriteOptions = {**options, "isolation_level": options.get("isolation_level") or SERIALIZABLE}
            return overwrite(log, None, _handed(chosen, source), None, "static", None, chosen, first)
        about = {"read_version": before.version, **about}
        request = MergeRequest(None, on, "s", "t", chosen, "merge" if batch.adds_column else None)
        # Another writer dropped some of these tombstones. The rest may stay until the next write.
        tries = [source, chosen.filter(source, Not(Column((_DROPPED,))))] if batch.drops else [source]
        while True:
            try:
                return merge(log, before, request._replace(source=_handed(chosen, tries.pop(0))), clauses, about)
            except ConflictError as e:
                if tries:
                    continue
                if "read_version" in options:
                    raise
                # The caller can compute the rows again from the new version of the table.
                raise e.__cause__ or e from None


def _handed(engine: Engine, relation: Relation) -> object:
    """Return a relation as a source for a write. Spark accepts its own relation, the local engine needs a reader."""
    return relation if engine.name == "spark" else engine.to_reader(relation)


class _Batch:
    """The events of a batch, and the rows of the table with the same keys."""

    def __init__(
        self, engine: Engine, before: Snapshot | None, rows: Relation, changes: Changes, kept: ExitStack
    ) -> None:
        self._engine, self._before, self._changes, self._kept = engine, before, changes, kept
        delete_when, sequence = changes.delete_when, changes.sequence
        if changes.envelope is not None:
            rows, delete_when, sequence = opened(engine, rows, changes.envelope, sequence)
        schema = engine.schema(rows)
        own = (VALID_FROM, VALID_TO, IS_CURRENT, IS_DELETED) if changes.scd == 2 else (DELETED_AT,)
        if clash := [name for name in schema.names if name.lower() in own]:
            raise SchemaMismatchError(
                f"The rows have a column {clash[0]}, which write='cdc' computes",
                remedy="Rename the column in the source, or add it to except_columns",
            )
        self._keys = resolve_column_names(changes.keys, schema, "keys")
        self._sequence = resolve_column_names(sequence, schema, "sequence_by")
        left_out = {*resolve_column_names(changes.except_columns, schema, "except_columns")}
        if changes.envelope is not None:
            left_out.add(CHANGE_TYPE)
        self._places = [*self._keys, *self._sequence]
        if needed := [name for name in self._places if name in left_out]:
            raise InvalidRequestError(
                f"except_columns contains {needed[0]}, which the table needs",
                cause="The table needs all keys to match rows, and the sequence to find the newer row",
                remedy=f"Leave {needed[0]} out of except_columns",
            )
        if twice := [name for name in self._sequence if name in self._keys]:
            raise InvalidRequestError(
                f"{twice[0]} is both a key and sequence_by", remedy="Pass another column as sequence_by"
            )
        gone: Expression = _FALSE
        if delete_when is not None:
            gone = Choice(((resolve_predicate(delete_when, schema), _TRUE), (_TRUE, _FALSE)))
        self._schema = StructType(tuple(field for field in schema if field.name not in left_out))
        rows = engine.project(rows, [*as_they_are(self._schema.names), _computed(_GONE, gone)])
        self.adds_column = self.drops = False
        if before is not None:
            rows = self._fitted(rows, before, own)
        elif changes.envelope is not None:
            self._schema = as_created_from_data(self._schema, keeps_not_null=False)
        self._others = [name for name in self._schema.names if name not in self._places]
        self._ensure_comparable()
        self._within = tuple(resolve_predicate(one, self._schema) for one in changes.within)
        self._is_about_keys = not self._within or self._looks_at() <= set(self._keys)
        batch = kept.enter_context(engine.evaluated(self._without_values(rows)))
        self._ensure_places(batch)
        if changes.envelope == "change_feed":
            # A commit may delete a key and insert it again. Only the inserted row counts.
            stays = self._is_same("b", "h"), Column(("b", *_GONE.path)), Not(Column(("h", *_GONE.path)))
            batch = kept.enter_context(engine.evaluated(self._joined(batch, batch, conjunction(*stays), "anti")))
        if changes.full_snapshot:
            batch = kept.enter_context(engine.evaluated(self._with_missing(batch)))
        self._batch = batch

    def _fitted(self, rows: Relation, before: Snapshot, own: Sequence[str]) -> Relation:
        """Return the rows with the columns and types of the table."""
        missing = [name for name in own if before.schema.find(name) is None]
        if missing and self._changes.scd == 2:
            raise SchemaMismatchError(
                f"The table has no column {missing[0]}",
                cause=f"write='cdc' with scd=2 stores versions in the columns {', '.join(own)}",
                remedy="Write to a new location, where write='cdc' creates the table",
            )
        self.adds_column = bool(missing) and self._changes.deletes
        wanted = replace(before.schema, fields=tuple(f for f in before.schema if f.name.lower() not in own))
        rows, given = filled_up(self._engine, rows, wanted)
        given = StructType(tuple(field for field in given if field.name not in _GONE.path))
        new = [name for name in given.names if wanted.find(name) is None]
        if new:
            raise SchemaMismatchError(
                f"The table has no column {new[0]}",
                cause="Change events cannot add columns",
                remedy="Add the column with alter().add_column(), or add it to except_columns",
                columns=new,
            )
        ensure_schema_fits(given, wanted)
        self._schema = wanted
        self._keys = resolve_column_names(self._keys, wanted, "keys")
        self._sequence = resolve_column_names(self._sequence, wanted, "sequence_by")
        self._places = [*self._keys, *self._sequence]
        nullable = tuple(replace(field, nullable=True) for field in wanted)
        return self._engine.conform(rows, StructType((*nullable, StructField(_GONE.path[0], BOOLEAN))))

    def _without_values(self, rows: Relation) -> Relation:
        """Return the events, where a row that deletes its key has no values except the key and the sequence."""
        columns = as_they_are(self._schema.names)
        if self._changes.deletes:
            columns = [
                ComputedColumn(name, Choice(((Not(_GONE), Column((name,))),)) if name in self._others else value)
                for name, value in ((column.name, column.value) for column in columns)
            ]
        return self._engine.project(rows, [*columns, *as_they_are(_GONE.path)])

    def _ensure_comparable(self) -> None:
        for field in self._schema:
            if not has_equality(field.data_type):
                raise SchemaMismatchError(
                    f"write='cdc' cannot compare the column {field.name} ({field.data_type})",
                    cause="Values of maps and variants cannot be compared",
                    remedy="Use arrays of structs (key, value) instead of maps, and texts or structs instead of "
                    "variants. Or add the column to except_columns",
                )
            if field.name in self._sequence and not has_exact_bounds(field.data_type):
                raise SchemaMismatchError(
                    f"sequence_by is {field.name}, of type {field.data_type}",
                    cause="Statistics do not bound the values of this type, so they cannot order late events",
                    remedy="Use a column of integers, decimals, texts, dates or timestamps",
                )

    def _looks_at(self) -> set[str]:
        names = {column.path[0] for one in self._within for column in columns_of(one)}
        if not names <= set(self._keys) and names != {self._sequence[0]}:
            raise InvalidRequestError(
                f"The partitions depend on {', '.join(sorted(names))}, so events of a key can lie in several "
                "partitions",
                cause="All events of a key must be processed together",
                remedy=f"Partition by columns of the keys ({', '.join(self._keys)}), or by the sequence "
                f"({self._sequence[0]})",
            )
        return names

    # Snapshots

    def _with_missing(self, batch: Relation) -> Relation:
        """Return the rows of a snapshot, and deletions of the keys that are missing in it."""
        engine, sequence = self._engine, as_they_are(self._sequence)
        for one in (None,) if self._is_about_keys else self._within:
            part = batch if one is None else engine.filter(batch, one)
            moments = engine.to_arrow(engine.aggregate(part, sequence, []), limit=2)
            if moments.num_rows != 1:
                raise ConstraintViolationError(
                    "A snapshot has rows of several sequences" if moments.num_rows else "A snapshot is empty",
                    cause="Each partition is one snapshot. Missing keys are deleted at the sequence of its rows",
                    remedy="Give all rows of a snapshot the same sequence. Nothing was committed",
                )
        owned = any_of(self._within) if self._within and self._is_about_keys else None
        every_moment = engine.aggregate(batch, sequence, [])
        if self._before is not None:
            table = self._table(self._places, owned)
            newer = self._joined(table, every_moment, _is_newer("b", "h", self._sequence), "semi", self._places)
            self._refuse({"A snapshot comes late: the table has newer rows": newer}, LateChangeError)
        is_live: Expression = Column((IS_CURRENT,)) if self._changes.scd == 2 else IsNull(Column((DELETED_AT,)))
        if self._changes.scd == 1 and (self._before is None or self.adds_column):
            is_live = _TRUE
        keys = as_they_are(self._keys)
        live = self._table(self._keys, conjunction(is_live, owned))
        every_key = engine.aggregate(engine.union([live, engine.project(batch, keys)]), keys, [])
        names = [*_of("b", self._keys), *_of("h", self._sequence)]
        every_place = engine.join(JoinSide("b", every_key), JoinSide("h", every_moment), _TRUE, "inner", names)
        columns = [*_of("b", self._places), _computed(_GONE, _TRUE)]
        missing = engine.join(
            JoinSide("b", every_place), JoinSide("h", batch), self._is_same("b", "h"), "anti", columns
        )
        return engine.union([batch, engine.conform(missing, engine.schema(batch))])

    # The table

    def _table(self, columns: Sequence[str], where: Expression | None) -> Relation:
        if self._before is None:
            return self._engine.relation(schema_to_arrow(self._whole_schema()).empty_table().select(list(columns)))
        return open_source(self._engine, Scan(self._before, columns, where))

    def _whole_schema(self) -> StructType:
        """Return the columns of the table that these events create."""
        if self._changes.scd == 1:
            own: tuple[StructField, ...] = (StructField(DELETED_AT, TIMESTAMP),)
        else:
            first = self._schema.find(self._sequence[0])
            assert first is not None
            ends = (StructField(VALID_FROM, first.data_type), StructField(VALID_TO, first.data_type))
            own = (*ends, StructField(IS_CURRENT, BOOLEAN), StructField(IS_DELETED, BOOLEAN))
        return replace(self._schema, fields=(*self._schema.fields, *own))

    def _events_of_table(self) -> Relation:
        """Return the rows of the table with keys of the batch, as events. `_ENDED` is the end of a stored version."""
        engine, stored = self._engine, self._schema.names
        own = [VALID_TO, IS_DELETED] if self._changes.scd == 2 else [DELETED_AT]
        has_own = self._before is None or self._before.schema.find(own[-1]) is not None
        where = None
        if self._before is not None:
            batch = engine.schema(self._batch)
            sides = Sides(self._before.schema, batch, "t", "s")
            on = resolve_expression(_equal(TARGET, SOURCE, self._keys), sides.schema)
            where = find_candidates(engine, self._batch, on, sides, self._before.partition_columns).where
        rows = self._table([*stored, *(own if has_own else ())], where)
        gone: Expression = Column(("b", IS_DELETED)) if self._changes.scd == 2 else _FALSE
        if self._changes.scd == 1 and has_own:
            gone = Not(IsNull(Column(("b", DELETED_AT))))
        ended = [_computed(_ENDED, Column(("b", VALID_TO)))] if self._changes.scd == 2 else []
        columns = [*_of("b", stored), _computed(_GONE, gone), *ended]
        by_key = _equal("b", "h", self._keys)
        found = engine.join(JoinSide("b", rows), JoinSide("h", self._batch), by_key, "semi", columns)
        return self._kept.enter_context(engine.evaluated(found))

    # Invalid events

    def _ensure_places(self, batch: Relation) -> None:
        if self._within:
            outside = self._engine.filter(batch, is_not_true(any_of(self._within)))
            self._refuse({"A row lies outside of the run's partitions": outside})
        is_null = disjunction(*(IsNull(Column((name,))) for name in self._places))
        self._refuse({"A key or the sequence of a row is null": self._engine.filter(batch, is_null)})

    def _ensure_one_each(self, rows: Relation, others: Relation, of: str) -> None:
        """Check that events with the same key and sequence are equal."""
        clash = conjunction(self._is_same("b", "h"), Not(self._is_identical("b", "h")))
        self._refuse(
            {f"Two events of one key have the same sequence and differ{of}": self._joined(rows, others, clash)}
        )

    def _refuse(
        self, problems: Mapping[str, Relation], kind: type[ConstraintViolationError] = ConstraintViolationError
    ) -> None:
        """Raise an error for the first invalid row. The keys of `problems` are messages."""
        for problem, rows in problems.items():
            shown = self._engine.to_arrow(self._engine.project(rows, as_they_are(self._places)), limit=1)
            if shown.num_rows:
                (row,) = python_rows(shown)
                raise kind(problem, cause=f"It is {row}", remedy=_REMEDIES[kind], row=row)

    # Changes of the table

    def versions(self) -> tuple[Relation, Sequence[Clause], str]:
        """Return the versions that are new or changed, as the source of the merge, with its clauses and its
        condition."""
        engine, names = self._engine, self._schema.names
        keys, order = _columns(self._keys), _columns(self._sequence)
        self._ensure_one_each(self._batch, self._batch, "")
        numbered = engine.window(self._batch, [*keys, *order], order, [WindowColumn(_PROBLEM, "row_number")])
        batch = engine.filter(numbered, Comparison("=", Column((_PROBLEM,)), Literal(1, INTEGER)))
        table = self._events_of_table()
        event = [*names, *_GONE.path]
        fresh = self._joined(batch, table, self._is_identical("b", "h"), "anti", event)
        fresh = self._kept.enter_context(engine.evaluated(fresh))
        if not self._changes.corrects:
            self._ensure_one_each(fresh, table, ": the batch brings another one than the table has")
        first = self._schema.find(self._sequence[0])
        assert first is not None
        no_end = _computed(_ENDED, Literal(None, first.data_type))
        parts = [
            self._marked(self._joined(table, fresh, self._is_same("b", "h"), "anti", [*event, *_ENDED.path]), _TRUE),
            self._marked(self._joined(fresh, table, self._is_same("b", "h"), "anti", event), _FALSE, no_end),
            self._marked(self._joined(fresh, table, self._is_same("b", "h"), "semi", event), None, no_end),
        ]
        events = engine.union(parts)
        if self._changes.full_snapshot:
            events = self._without_repeats(events)
        following = engine.window(events, keys, order, [WindowColumn(_NEXT.path[0], "lead", order[0])])
        own = {
            VALID_FROM: order[0],
            VALID_TO: Choice(((_GONE, order[0]), (_TRUE, _NEXT))),
            IS_CURRENT: conjunction(Not(_GONE), IsNull(_NEXT)),
            IS_DELETED: _GONE,
        }
        columns = [*as_they_are(names), *(ComputedColumn(name, value) for name, value in own.items())]
        placed = engine.project(following, [*columns, *as_they_are([*_ENDED.path, *_KNOWN.path])])
        is_as_it_was = conjunction(Comparison("<=>", _KNOWN, _TRUE), Comparison("<=>", Column((VALID_TO,)), _ENDED))
        source = engine.project(engine.filter(placed, Not(is_as_it_was)), as_they_are([*names, *own]))
        # Events of another writer with the same key must conflict, whatever their sequence. Because of `coalesce`, the
        # merge does not narrow its read set to the sequence.
        same = " AND ".join(f"t.{name} = s.{name}" for name in map(quote_identifier, self._sequence))
        on = f"{self._same_keys()} AND coalesce({same}, false)"
        return source, _clauses([*names, *own]), on

    def _marked(self, rows: Relation, known: Expression | None, *more: ComputedColumn) -> Relation:
        """Return events with `_KNOWN`: true for an event of the table, false for a new one, null for a new one that
        replaces an event of the table."""
        value = Literal(None, BOOLEAN) if known is None else known
        columns = as_they_are([*self._schema.names, *_GONE.path])
        ended = list(more) or as_they_are(_ENDED.path)
        return self._engine.project(rows, [*columns, *ended, _computed(_KNOWN, value)])

    def _without_repeats(self, events: Relation) -> Relation:
        """Remove the rows of a snapshot that are equal to the version before them. A snapshot has all rows, and most do
        not change."""
        before = {name: Column((_BEFORE.format(number),)) for number, name in enumerate(self._others)}
        gone_before = Column((_BEFORE.format("gone"),))
        columns = [WindowColumn(label.path[0], "lag", Column((name,))) for name, label in before.items()]
        columns.append(WindowColumn(gone_before.path[0], "lag", _GONE))
        neighbors = self._engine.window(events, _columns(self._keys), _columns(self._sequence), columns)
        differs = disjunction(*(_differ(Column((name,)), label) for name, label in before.items()))
        is_step = disjunction(
            Not(Comparison("<=>", _KNOWN, _FALSE)),
            conjunction(IsNull(gone_before), Not(_GONE)),
            Not(Comparison("<=>", gone_before, _GONE)) if self._before is not None else Not(_GONE),
            conjunction(Not(_GONE), differs),
        )
        kept = self._engine.filter(neighbors, is_step)
        kept = self._engine.project(kept, as_they_are(self._engine.schema(events).names))
        return self._with_trace(kept, self._engine.filter(events, Not(_GONE)))

    def _with_trace(self, kept: Relation, events: Relation) -> Relation:
        """Keep at least one row of each snapshot, even if nothing changed. With it, the next write detects an older
        snapshot that comes late."""
        engine, sequence = self._engine, as_they_are(self._sequence)
        for part in self._within if self._within and self._is_about_keys else (_TRUE,):
            newest = self._last_of(engine.aggregate(engine.filter(self._batch, part), sequence, []), ())
            at_newest = _equal("b", "h", self._sequence)
            traces = (engine.filter(kept, part), self._table(self._places, part))
            found = (self._joined(rows, newest, at_newest, "semi", self._places) for rows in traces)
            if not any(engine.to_arrow(rows, limit=1).num_rows for rows in found):
                row = engine.to_arrow(self._joined(engine.filter(events, part), newest, at_newest), limit=1)
                kept = engine.union([kept, engine.conform(engine.relation(row), engine.schema(kept))])
        return kept

    def newest(self) -> tuple[Relation, Sequence[Clause], str]:
        """Return the newest event of each key, if it is newer than the table, and tombstones to drop. They are the
        source of the merge, with its clauses and its condition."""
        engine, names = self._engine, self._schema.names
        newest = self._last_of(self._batch, self._keys)
        newest = self._kept.enter_context(engine.evaluated(newest))
        self._ensure_one_each(self._batch, newest, "")
        table = self._events_of_table()
        is_old = disjunction(_is_newer("h", "b", self._sequence), self._is_identical("b", "h"))
        by_key = _equal("b", "h", self._keys)
        event = [*names, *_GONE.path]
        fresh = self._joined(newest, table, conjunction(by_key, is_old), "anti", event)
        fresh = self._kept.enter_context(engine.evaluated(fresh))
        if not self._changes.corrects:
            self._ensure_one_each(fresh, table, ": the batch brings another one than the table has")
        deleted: list[ComputedColumn] = []
        has_column = self._before is not None and self._before.schema.find(DELETED_AT) is not None
        if has_column or self._changes.deletes:
            now = Literal(datetime.now(UTC), TIMESTAMP)
            deleted = [ComputedColumn(DELETED_AT, Choice(((_GONE, now),)))]
        columns = [*as_they_are(names), *deleted]
        if self._before is None:
            return engine.project(fresh, columns), (), ""
        source = engine.project(fresh, [*columns, ComputedColumn(_DROPPED, _FALSE)])
        if has_column:
            dropped = self._expired(fresh, self._joined(fresh, table, by_key, "anti", self._places))
            self.drops = bool(engine.to_arrow(dropped, limit=1).num_rows)
            source = engine.union([source, engine.conform(dropped, engine.schema(source))])
        drop = Clause(Kind.MATCHED, Action.DELETE, f"s.{_DROPPED}")
        return source, (drop, *_clauses([*names, *(one.name for one in deleted)])), self._same_keys()

    def _expired(self, fresh: Relation, unknown: Relation) -> Relation:
        """Return the tombstones to drop: all that are too old, except the newest of them. An event of an unknown key
        that is not newer than this one is refused, because its key may have been deleted.

        Args:
            unknown: Events whose key the table does not have.
        """
        engine = self._engine
        horizon = Literal(datetime.now(UTC) - self._changes.retention, TIMESTAMP)
        is_old = Comparison("<", Column((DELETED_AT,)), horizon)
        expired = self._kept.enter_context(engine.evaluated(self._table([*self._places], is_old)))
        last = self._kept.enter_context(engine.evaluated(self._last_of(expired, ())))
        late = self._joined(unknown, last, Not(_is_newer("b", "h", self._sequence)), "semi", self._places)
        self._refuse({"A change comes later than tombstone_retention: its key may be deleted": late}, LateChangeError)
        rest = self._joined(expired, last, self._is_same("b", "h"), "anti", self._places)
        dropped = self._joined(rest, fresh, _equal("b", "h", self._keys), "anti", self._places)
        return engine.project(dropped, [*as_they_are(self._places), ComputedColumn(_DROPPED, _TRUE)])

    def _last_of(self, events: Relation, keys: Sequence[str]) -> Relation:
        """Return the event with the greatest sequence of each key."""
        engine, names = self._engine, self._engine.schema(events).names
        following = [WindowColumn(_NEXT.path[0], "lead", Column((self._sequence[0],)))]
        ordered = engine.window(events, _columns(keys), _columns(self._sequence), following)
        return engine.project(engine.filter(ordered, IsNull(_NEXT)), as_they_are(names))

    def _same_keys(self) -> str:
        return " AND ".join(f"t.{name} = s.{name}" for name in map(quote_identifier, self._keys))

    def _joined(
        self,
        rows: Relation,
        others: Relation,
        on: Expression,
        kind: JoinKind = "semi",
        columns: Sequence[str] | None = None,
    ) -> Relation:
        """Join rows (side `b`) with others (side `h`), by default a semi-join that keeps rows with a match."""
        names = self._engine.schema(rows).names if columns is None else columns
        return self._engine.join(JoinSide("b", rows), JoinSide("h", others), on, kind, _of("b", names))

    def _is_same(self, one: str, other: str) -> Expression:
        return _equal(one, other, self._places)

    def _is_identical(self, one: str, other: str) -> Expression:
        gone = Comparison("=", Column((one, *_GONE.path)), Column((other, *_GONE.path)))
        values = (Not(_differ(Column((one, name)), Column((other, name)))) for name in self._others)
        return conjunction(self._is_same(one, other), gone, *values)


_REMEDIES = {
    ConstraintViolationError: "Correct the batch. If two events share a sequence, add a second column to sequence_by. "
    "Nothing was committed",
    LateChangeError: "Leave the row out, or apply it by hand with upsert or delete. Nothing was committed",
}


def _clauses(names: Sequence[str]) -> tuple[Clause, Clause]:
    values = {quote_identifier(name): f"s.{quote_identifier(name)}" for name in names}
    return Clause(Kind.MATCHED, Action.UPDATE, None, values), Clause(Kind.NOT_MATCHED, Action.INSERT, None, values)


def _columns(names: Iterable[str]) -> list[Column]:
    return [Column((name,)) for name in names]


def _of(alias: str, names: Iterable[str]) -> list[ComputedColumn]:
    """Return columns of one side of a join, under their own names."""
    return [ComputedColumn(name, Column((alias, name))) for name in names]


def _computed(column: Column, value: Expression) -> ComputedColumn:
    return ComputedColumn(column.path[0], value)


def _equal(one: str, other: str, names: Iterable[str]) -> Expression:
    return conjunction(*(Comparison("=", Column((one, name)), Column((other, name))) for name in names))


def _differ(one: Column, other: Column) -> Expression:
    # Arrow cannot compare nested values, but an engine can.
    return Not(Coerced(Comparison("<=>", one, other)))


def _is_newer(one: str, other: str, names: Sequence[str]) -> Expression:
    """Whether a sequence is greater. The first column that differs decides."""
    return disjunction(
        *(
            conjunction(_equal(one, other, names[:place]), Comparison(">", Column((one, name)), Column((other, name))))
            for place, name in enumerate(names)
        )
    )
