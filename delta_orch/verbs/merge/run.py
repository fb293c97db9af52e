"""`merge`: updates, deletes and inserts rows of a table from a source, in one commit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import ComputedColumn, Engine, JoinSide, Measure, Relation, as_they_are
from delta_orch.engines.row_sets import RowSet
from delta_orch.engines.select import EngineChoice, select_engine
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.clock import one_moment
from delta_orch.expressions.column_names import free_name
from delta_orch.expressions.nodes import Column, Comparison, Expression, In, Literal, Not
from delta_orch.expressions.renaming import renamed
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.tree import any_of, columns_of, conjunction, disjunction, is_not_true
from delta_orch.log.files.file_columns import ADD_SCHEMA, NO_FILES, record_counts
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from delta_orch.log.write.staging import Metrics
from delta_orch.protocol.arrow_building import python_rows
from delta_orch.protocol.schema_check import ensure_schema_fits
from delta_orch.protocol.types import INTEGER, STRING, StructType
from delta_orch.scan.scan import scan_of_files
from delta_orch.table.schema_evolution import SchemaMode, parse_schema_mode
from delta_orch.verbs.merge.assignments import evolution, left_to_table, resolve_clauses, with_defaults
from delta_orch.verbs.merge.candidates import (
    Candidates,
    equalities,
    find_candidates,
    inside_one,
    knows,
    moved_row,
    on_target,
)
from delta_orch.verbs.merge.classification import (
    CLAUSE,
    NO_CLAUSE,
    Classified,
    Clauses,
    classify,
    condition_columns,
    marked,
    needed_columns,
    with_keys,
)
from delta_orch.verbs.merge.clauses import Action, Clause, Kind, ensure_reachable
from delta_orch.verbs.merge.new_rows import clause_rows, ensure_unique, key_fields, rows_by_kind, value_types
from delta_orch.verbs.merge.operation_info import merge_metrics, merge_parameters
from delta_orch.verbs.merge.sides import SOURCE, TARGET, Sides, aliases, ensure_distinct_names, filled_up, settled
from delta_orch.writing.plan import Write, WritePlan, run_plan
from delta_orch.writing.row_changes import ADDRESS, INSERT, RowChanges
from delta_orch.writing.sources import open_source
from delta_orch.writing.target import WriteTarget, evolve_target

if TYPE_CHECKING:
    from delta_orch.engines.row_sets import RowKey
    from delta_orch.scan.explain import ScanExplanation

_MOST_KEYS = 5


class MergeRequest(NamedTuple):
    """The arguments of a merge.

    Attributes:
        bounds: The parts of the table that the merge may write, as predicates on its columns. No row satisfies two of
            them. Every new row must satisfy one. A table row must satisfy the same predicate as the source row that it
            matches.
        unique: Columns of both sides that identify a row. See `new_rows.ensure_unique`.
        lossless: If true, the source must not have a column that the table lacks, or a value that the cast would
            change, as for an append. Otherwise such columns are ignored and values are cast, as in a SQL assignment.
    """

    source: object
    on: object
    source_alias: str
    target_alias: str
    engine: EngineChoice = "auto"
    schema_mode: str | None = None
    bounds: tuple[Expression, ...] = ()
    unique: tuple[str, ...] = ()
    lossless: bool = False


def merge(
    log: TableLog, snapshot: Snapshot, request: MergeRequest, clauses: Sequence[Clause], options: CommitOptions
) -> CommitResult:
    """Run a merge.

    The keys of the source exclude files of the table. Then one join finds, for each row of both sides, the first clause
    whose condition is true. If clauses only insert, no file of the table changes. Otherwise rows change as
    `RowChanges.apply` describes. Rows are never all in memory. The engine spills to disk.

    Returns: `skipped` if neither rows nor the schema change. In that case nothing is committed, unless there is a
    `txn`.

    Raises: As `Merge.execute`.
    """
    return _run(log, snapshot, request, clauses, options, _Run.run)


def explain_merge(
    log: TableLog, snapshot: Snapshot, request: MergeRequest, clauses: Sequence[Clause]
) -> ScanExplanation:
    """Return the files that a merge would open, without running it. See `Merge.explain`."""
    explanations: list[ScanExplanation] = []

    def explain(run: _Run) -> None:
        explanations.append(run.explained())

    _run(log, snapshot, request, clauses, {}, explain)
    return explanations[0]


@one_moment()
def _run(
    log: TableLog,
    snapshot: Snapshot,
    request: MergeRequest,
    clauses: Sequence[Clause],
    options: CommitOptions,
    work: Callable[[_Run], Metrics | None],
) -> CommitResult:
    ensure_reachable(clauses)
    target_alias, source_alias = aliases(request.target_alias, request.source_alias)
    mode = parse_schema_mode(request.schema_mode)
    if mode is SchemaMode.OVERWRITE:
        raise InvalidRequestError(
            'A merge does not accept schema_mode="overwrite"',
            cause="A merge keeps rows of the old schema",
            remedy='Use schema_mode="merge", or leave it out',
        )
    request = request._replace(target_alias=target_alias, source_alias=source_alias)
    # A stream can be opened only once, but a plan may read its source before it runs.
    engine = select_engine(request.source, request.engine)

    def change(write: Write) -> Metrics | None:
        return work(_Run(write, request, clauses, mode is SchemaMode.MERGE))

    parameters = merge_parameters(request.on, clauses)
    within = any_of(request.bounds) if request.bounds else None
    return run_plan(log, snapshot, WritePlan("MERGE", parameters, change, options, engine=engine, within=within))


class _Run:
    """One run of a merge's plan."""

    def __init__(self, write: Write, request: MergeRequest, clauses: Sequence[Clause], evolves: bool) -> None:
        self._started = time.monotonic()
        self._write = write
        self._engine: Engine = write.engine
        self._request = request
        self._user_clauses = clauses
        # The column of the source that marks rows to insert, for merges with `replace_matched`.
        self._mark: str | None = None
        self._evolves = evolves

    def run(self) -> Metrics | None:
        write, engine = self._write, self._engine
        before = write.target.table
        source = self._prepare()
        changed_schema = write.target.table is not before
        with ExitStack() as stack:
            stack.enter_context(engine.statement())
            rows = stack.enter_context(settled(engine, self._request.source, source))
            if write.omitted is not None and len(self._request.bounds) > 1:
                # Table rows in these partitions are still checked, because a source row must not match one of them.
                is_left = resolve_expression(is_not_true(write.omitted), engine.schema(rows))
                rows = engine.filter(rows, is_left)
            if self._mark is not None:
                rows = with_keys(engine, rows, self._on, self._mark)
            materialized = time.monotonic()
            metrics = self._change(rows, stack, is_needed=changed_schema)
        if metrics is not None:
            metrics["materializeSourceTimeMs"] = int((materialized - self._started) * 1000)
        return metrics

    def explained(self) -> ScanExplanation:
        """Return the files and row groups that `run` would open, by the keys of the source. No row of the table is
        read."""
        from delta_orch.engines.local.scan import count_row_groups
        from delta_orch.scan.explain import explain_scan

        snapshot = self._write.snapshot
        assert snapshot is not None
        source = self._prepare()
        with settled(self._engine, self._request.source, source) as rows:
            row_filter, where, files = self._select(self._candidates(rows))
        plan = scan_of_files(snapshot, files, where=where, table=self._write.target.table)
        return replace(explain_scan(snapshot, row_filter, None), row_groups=count_row_groups(plan))

    def _prepare(self) -> Relation:
        """Resolve the clauses against both sides. A clause that does not fit raises an error before a row is read.

        Returns: The opened source.
        """
        write, engine = self._write, self._engine
        assert write.snapshot is not None
        source = open_source(engine, self._request.source, write.target.schema)
        ensure_distinct_names(engine.schema(source))
        source, columns = filled_up(engine, source, write.target.schema)
        sides = self._fit_table(columns)
        if self._request.lossless:
            # Columns that the source lacks are computed for the clauses.
            ensure_schema_fits(sides.source, sides.target, filled=sides.target.names, fill_nulls=self._evolves)
        self._on = sides.predicate(self._request.on, "condition of the merge")
        resolved = resolve_clauses(self._user_clauses, sides, write.target.table, evolves=self._evolves)
        if any(clause.replaces for clause in self._user_clauses):
            source, sides, self._on, resolved, self._mark = marked(engine, source, sides, self._on, resolved)
        self._clauses = Clauses(with_defaults(resolved, write.target.table))
        self._recomputed = left_to_table(self._clauses.all, Action.UPDATE, write.target.schema)
        self._filled = left_to_table(self._clauses.all, Action.INSERT, write.target.schema)
        self._sides = sides
        self._keys = {} if self._clauses.inserts_only else self._key_columns()
        self._unique = key_fields(self._request.unique, sides)
        bounds = self._request.bounds
        self._is_inside = inside_one(bounds, sides) if bounds else None
        keyed = {key.target for key in equalities(self._on, sides)}
        # These columns determine the part of a row: the columns of the bounds, or columns that a scope can use.
        places = [column for part in bounds for column in columns_of(part)]
        if not bounds and self._clauses.of(Kind.NOT_MATCHED):
            places = [Column((name,)) for name in write.target.partition_columns]
        if not keyed.issuperset(places):
            # A source row may match a row that another run writes to its own part meanwhile.
            write.transaction.read_across_scopes()
            if write.omitted is not None and not bounds:
                self._ensure_places_are_matched(write.omitted, keyed)
        updated = {path[0] for clause in self._clauses.all if clause.action is Action.UPDATE for path in clause.values}
        write.moves_across_partitions = not {*updated, *self._recomputed}.isdisjoint(write.target.partition_columns)
        if write.moves_across_partitions and not bounds:
            write.transaction.move_across_scopes()
        changes = RowChanges(write, NO_FILES)
        self._types = value_types(engine, changes, source, self._clauses.all, sides, evolves=self._evolves)
        return source

    @staticmethod
    def _ensure_places_are_matched(omitted: Expression, keyed: set[Column]) -> None:
        """Refuse a merge if source rows may match a row of an omitted partition. Such rows would match nothing and
        would be inserted again."""
        missing = sorted({".".join(column.path) for column in columns_of(omitted) if column not in keyed})
        if missing:
            raise InvalidRequestError(
                f"The condition of the merge does not compare {missing[0]}, a column of its txn scopes",
                cause="Some scopes are recorded already. A source row that matches a row in such a scope would be "
                "inserted again",
                remedy=f"Compare {missing[0]} of both sides in the condition, or pass a TxnId without scope",
                columns=missing,
            )

    def _fit_table(self, source: StructType) -> Sides:
        """Return the sides, with the table's columns after the merge."""
        write, request = self._write, self._request
        sides = Sides(write.target.schema, source, request.target_alias, request.source_alias)
        if not self._evolves:
            return sides
        before = write.target.table
        evolved_schema = evolution(self._user_clauses, sides)
        evolved: WriteTarget = evolve_target(write.target, evolved_schema, SchemaMode.MERGE, may_cast=True)
        if evolved.table is before:
            return sides
        write.target = evolved
        if evolved.table.protocol != before.protocol:
            write.transaction.update_protocol(evolved.table.protocol)
        write.transaction.update_metadata(evolved.table.metadata)
        return replace(sides, target=evolved.schema, named=sides.target)

    # Changed rows

    def _change(self, source: Relation, stack: ExitStack, *, is_needed: bool) -> Metrics | None:
        write, engine = self._write, self._engine
        snapshot = write.snapshot
        assert snapshot is not None
        candidates = self._candidates(source)
        _, where, files = self._select(candidates)
        started = time.monotonic()
        # These metrics are also recorded if no row changes.
        write.measured |= {
            "numTargetFilesBeforeSkipping": snapshot.num_files,
            "numTargetFilesAfterSkipping": files.num_rows,
        }
        if self._clauses.changes_all_that_matters:
            write.transaction.read_rows(files)
        changes = RowChanges(write, files)
        target_rows = record_counts(files)
        classified = self._classify(
            changes,
            JoinSide(SOURCE, source, candidates.num_source_rows),
            where,
            None if target_rows.null_count else pc.sum(target_rows).as_py() or 0,
        )
        classified = replace(classified, rows=stack.enter_context(engine.evaluated(classified.rows)))
        row_sets = self._row_sets(classified.rows)
        counts = Counter[str | int]()
        for (number, _), rows in row_sets.items():
            counts[number] += rows.num_rows
        self._ensure_single_matches(changes, classified, row_sets)
        self._ensure_inside(classified)
        self._ensure_unique(classified, counts)
        scan_ms = int((time.monotonic() - started) * 1000)
        changing = [clause for clause in self._clauses.all if counts.get(clause.number)]
        if not changing and not is_needed:
            return None
        relation = None
        sets: Mapping[RowKey, RowSet] | None = rows_by_kind(changing, row_sets)
        if changing:
            relation = clause_rows(engine, classified, changing, self._types, write.target.schema, changes, self._keys)
            if write.omitted is not None and any(clause.action is Action.INSERT for clause in changing):
                # The scope filter depends on the values of new rows, so the row sets are no longer valid.
                relation, sets = self._within_scopes(relation, write.omitted), None
        result = changes.apply(
            relation,
            sets=sets,
            recomputed=self._recomputed,
            filled=self._filled,
            keys=list(self._keys),
            may_repeat=self._clauses.may_repeat,
        )
        return merge_metrics(
            replace(result, scan_ms=result.scan_ms + scan_ms),
            self._clauses.all,
            counts,
            source_rows=candidates.num_source_rows if self._mark is None else result.inserted,
            files_before=snapshot.num_files,
            files_after=files.num_rows,
            since=self._started,
        )

    def _candidates(self, source: Relation) -> Candidates:
        snapshot = self._write.snapshot
        assert snapshot is not None
        stored = replace(self._sides, target=snapshot.schema)
        return find_candidates(self._engine, source, self._on, stored, snapshot.partition_columns)

    def _select(self, candidates: Candidates) -> tuple[Expression | None, Expression | None, pa.Table]:
        """Return a condition for the rows of the table that the merge may need, a cheap part of the condition, and the
        files that may have such rows. The commit depends on these rows."""
        write, snapshot = self._write, self._write.snapshot
        assert snapshot is not None
        row_filter: Expression | None = candidates.where
        bounds = candidates.bounds
        if by_source := self._clauses.of(Kind.NOT_MATCHED_BY_SOURCE):
            conditions = [None if c.condition is None else on_target(c.condition) for c in by_source]
            file_conditions = [c for c in conditions if c is not None and knows(snapshot.schema, c)]
            if len(file_conditions) < len(conditions):
                row_filter = None
            else:
                row_filter = disjunction(
                    candidates.where, *(resolve_expression(c, snapshot.schema) for c in file_conditions)
                )
            bounds = None
        if row_filter is not None and isinstance(row_filter, Literal) and row_filter.value is True:
            row_filter = None
        if write.omitted is not None and not self._request.bounds:
            row_filter = conjunction(row_filter, is_not_true(write.omitted))
            bounds = conjunction(bounds, is_not_true(write.omitted))
        if row_filter is None:
            write.transaction.read_whole_table()
        else:
            write.transaction.read_where(row_filter)
        if bounds is not None:
            bounds = resolve_expression(bounds, write.target.schema)
        return row_filter, bounds, snapshot.files(ADD_SCHEMA.names, row_filter)

    def _classify(
        self, changes: RowChanges, source: JoinSide, where: Expression | None, num_rows: int | None
    ) -> Classified:
        needed = needed_columns(self._clauses, self._recomputed, self._sides)
        needed.update((Column(column.path[:2]), None) for column in self._keys.values())
        needed.update((Column((SOURCE, theirs.name)), None) for _, theirs in self._unique)
        if self._is_inside is not None:
            needed.update((Column(column.path[:2]), None) for column in columns_of(self._is_inside))
        looked_at = {**condition_columns(self._on, self._clauses), **needed}
        names = [name for name in self._sides.target.names if Column((TARGET, name)) in looked_at]
        return classify(
            self._engine,
            JoinSide(TARGET, changes.scan(where, names), num_rows),
            source,
            self._on,
            self._clauses,
            list(needed),
            changes.address_columns,
            self._sides,
        )

    def _row_sets(self, rows: Relation) -> Mapping[RowKey, RowSet]:
        """Return the rows of each clause, by its number and the number of their file. The file is None for source
        rows."""
        if not self._clauses.inserts_only:
            return self._engine.row_sets(rows, CLAUSE, ADDRESS.file_number, ADDRESS.row_position)
        groups = self._engine.aggregate(rows, [ComputedColumn("clause", Column((CLAUSE,)))], [Measure("rows", "count")])
        counts = self._engine.to_arrow(groups).to_pylist()
        return {(row["clause"], None): RowSet(num_rows=row["rows"]) for row in counts}

    def _ensure_single_matches(
        self, changes: RowChanges, classified: Classified, row_sets: Mapping[RowKey, RowSet]
    ) -> None:
        """If pairs without a clause count as matches, check that no row of the table has several matches."""
        matched = [NO_CLAUSE, *(clause.number for clause in self._clauses.of(Kind.MATCHED))]
        if not any(number == NO_CLAUSE for number, _ in row_sets):
            return
        is_pair = In(Column((CLAUSE,)), tuple(Literal(number, INTEGER) for number in matched))
        pairs = self._engine.filter(classified.rows, is_pair)
        address = [ADDRESS.file_number, ADDRESS.row_position]
        columns = as_they_are(address)
        keys = [ComputedColumn(label, renamed(key, classified.name_of)) for label, key in self._keys.items()]
        sets = {key: rows for key, rows in row_sets.items() if key[0] in matched}
        changes.ensure_once(sets, self._engine.project(pairs, [*columns, *keys]), list(self._keys))

    def _ensure_inside(self, classified: Classified) -> None:
        """Check that no source row matches a row of another partition, because that row must not move."""
        if self._is_inside is None:
            return
        numbers = tuple(Literal(clause.number, INTEGER) for clause in self._clauses.of(Kind.MATCHED))
        strays = is_not_true(renamed(self._is_inside, classified.name_of))
        pairs = self._engine.filter(classified.rows, conjunction(In(Column((CLAUSE,)), numbers), strays))
        keys = [ComputedColumn(label, renamed(key, classified.name_of)) for label, key in self._keys.items()]
        shown = python_rows(self._engine.to_arrow(self._engine.project(pairs, keys), limit=_MOST_KEYS))
        if shown:
            raise moved_row(shown)

    def _ensure_unique(self, classified: Classified, counts: Mapping[str | int, int]) -> None:
        """Check that inserted rows have unique keys (`MergeRequest.unique`)."""
        inserts = [clause.number for clause in self._clauses.of(Kind.NOT_MATCHED)]
        if self._unique and sum(counts.get(number, 0) for number in inserts):
            is_new = In(Column((CLAUSE,)), tuple(Literal(number, INTEGER) for number in inserts))
            new_rows = self._engine.filter(classified.rows, is_new)
            ensure_unique(self._engine, new_rows, classified, self._unique, self._write.target.partition_columns)

    def _key_columns(self) -> dict[str, Column]:
        """Return the columns that identify a row in an error, by their labels."""
        keys = {key.target: Column((SOURCE, *key.source.path)) for key in equalities(self._on, self._sides)}
        if not keys:
            looked_at = (column for column in columns_of(self._on) if column.path[0] == TARGET)
            keys = {Column(column.path[1:]): column for column in looked_at}
        reserved_names = [*self._sides.target.names, *ADDRESS.names]
        labels: dict[str, Column] = {}
        for key, column in list(keys.items())[:_MOST_KEYS]:
            label = ".".join((self._request.target_alias, *key.path))
            labels[free_name(label, [*reserved_names, *labels])] = column
        return labels

    def _within_scopes(self, relation: Relation, omitted: Expression) -> Relation:
        """Remove new rows for partitions whose transaction id is recorded."""
        is_insert = Comparison("=", Column((ADDRESS.kind,)), Literal(INSERT, STRING))
        return self._engine.filter(relation, disjunction(Not(is_insert), is_not_true(omitted)))
