"""What `DeltaTable.merge()` returns: one method a clause, `execute()` at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from delta_orch.arguments import checked
from delta_orch.verbs.merge.clauses import Action, Clause, Kind, assigned, names_of

if TYPE_CHECKING:
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.scan.explain import ScanExplanation


@checked
class Merge:
    """A merge of a source into a table. Clauses are tried in the order in which they are given.

        (table.merge(updates, "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_delete("s.is_gone")
            .when_matched_update_all()
            .when_not_matched_insert_all("NOT s.is_gone")
            .execute())

    The first clause of the row's kind whose condition is true applies to the row. Null is not true. A row without such
    a clause does not change. Nothing is read or written before `execute()`, which raises all errors. `explain()` says
    what it would open. Every other method returns the merge itself.

    Conditions and values are Spark SQL or expressions. They name columns with the alias of their side (`s.amount`). The
    alias is optional where only one side has the name. A `not_matched` clause can use only columns of the source. A
    `not_matched_by_source` clause can use only columns of the table.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Clause]], CommitResult],
        explain: Callable[[Sequence[Clause]], ScanExplanation],
    ) -> None:
        self._run = run
        self._explain = explain
        self._clauses: list[Clause] = []

    def _also(self, clause: Clause) -> Merge:
        self._clauses.append(clause)
        return self

    def when_matched_update(self, set: Mapping[str, object], condition: str | Expression | None = None) -> Merge:
        """Change columns of table rows that have a source row. Fields of structs may be named (`"address.city"`).

        Args:
            set: Column → value, as of `DeltaTable.update`. Other columns do not change. Generated columns are computed
                again.
        """
        values = assigned(set, "when matched update")
        return self._also(Clause(Kind.MATCHED, Action.UPDATE, condition, values))

    def when_matched_update_all(
        self, condition: str | Expression | None = None, except_columns: Sequence[str] = ()
    ) -> Merge:
        """Set every column to the source column of the same name. Case does not matter.

        Args:
            except_columns: Columns that do not change.
        """
        excluded = names_of(except_columns)
        return self._also(Clause(Kind.MATCHED, Action.UPDATE, condition, None, excluded))

    def when_matched_delete(self, condition: str | Expression | None = None) -> Merge:
        """Delete table rows that have a source row."""
        return self._also(Clause(Kind.MATCHED, Action.DELETE, condition))

    def when_not_matched_insert(self, values: Mapping[str, object], condition: str | Expression | None = None) -> Merge:
        """Insert each source row that matches no row of the table.

        Args:
            values: Column → value. Other columns get their default, are generated, or are null.
        """
        given = assigned(values, "when not matched insert")
        return self._also(Clause(Kind.NOT_MATCHED, Action.INSERT, condition, given))

    def when_not_matched_insert_all(
        self, condition: str | Expression | None = None, except_columns: Sequence[str] = ()
    ) -> Merge:
        """Insert each source row that matches no row of the table, with the source's columns of the same names.

        Args:
            except_columns: Source columns that are not used.
        """
        excluded = names_of(except_columns)
        return self._also(Clause(Kind.NOT_MATCHED, Action.INSERT, condition, None, excluded))

    def when_not_matched_by_source_update(
        self, set: Mapping[str, object], condition: str | Expression | None = None
    ) -> Merge:
        """Change columns of table rows that no source row matches."""
        values = assigned(set, "when not matched by source update")
        return self._also(Clause(Kind.NOT_MATCHED_BY_SOURCE, Action.UPDATE, condition, values))

    def when_not_matched_by_source_delete(self, condition: str | Expression | None = None) -> Merge:
        """Delete table rows that no source row matches."""
        return self._also(Clause(Kind.NOT_MATCHED_BY_SOURCE, Action.DELETE, condition))

    def replace_matched(self, values: Mapping[str, object] | None = None) -> Merge:
        """Delete table rows that have a source row, and insert every source row, those with the same keys, too. It is
        the only clause then.

            table.merge(days, "t.day = s.day", source_alias="s", target_alias="t").replace_matched().execute()

        Args:
            values: As of `when_not_matched_insert`; None for the source's columns of the same names.
        """
        given = None if values is None else assigned(values, "replace matched")
        self._also(Clause(Kind.MATCHED, Action.DELETE, replaces=True))
        return self._also(Clause(Kind.NOT_MATCHED, Action.INSERT, values=given, replaces=True))

    def explain(self) -> ScanExplanation:
        """How many files and row groups of the table the merge would open, and what leaves out the others: partition
        values and statistics, held against the keys of the source. Print the result, or use its `to_dict()`.

        The source is asked for its keys, which uses up a stream. Of the table the log and footers of files are read.

        Raises: As `execute` for what does not fit. MissingFileError, TableError, StorageError: A file cannot be read.
        """
        return self._explain(tuple(self._clauses))

    def execute(self) -> CommitResult:
        """Run the merge and commit it.

        Returns: `skipped` where a transaction id is recorded already, or no row changed.

        Raises:
            InvalidRequestError: There is no clause, a clause can never be reached, or an assignment is invalid; or rows
                are inserted, some scoped transaction ids are recorded, and the condition does not compare the columns
                of their scopes. Nothing was committed.
            InvalidExpressionError, ColumnNotFoundError: A condition or a value does not fit. Nothing was written.
            SchemaMismatchError: Columns are missing or of other types. Nothing was written.
            ConstraintViolationError: Several source rows match one row of the table (the error names up to five keys),
                a new row breaks a rule of the table, or one moves into a partition whose scoped transaction id is
                recorded. Nothing was committed.
            AppendOnlyError: The table keeps its rows. Nothing was committed.
            ConflictError: Another commit changed what this one has read.
        """
        return self._run(tuple(self._clauses))
