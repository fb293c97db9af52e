"""The builder that `DeltaTable.merge()` returns, with one method for each clause and `execute()`. It checks the rules
that need no table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from delta_orch.arguments import checked
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Column

if TYPE_CHECKING:
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.scan.explain import ScanExplanation


class Kind(StrEnum):
    """The rows that a clause applies to. The value is the name in errors."""

    MATCHED = "matched"
    NOT_MATCHED = "not matched"
    NOT_MATCHED_BY_SOURCE = "not matched by source"


class Action(StrEnum):
    """The action of a clause. The value is its name in `commitInfo`."""

    UPDATE = "update"
    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause.

    Attributes:
        condition: The predicate, as the user wrote it. None applies to every row of the kind.
        values: The new values by column, with the user's names. None assigns the source columns of the same names.
        except_columns: Source columns that are not used. Only valid without `values`.
        replaces: Whether the clause is one of the two of `replace_matched`, which apply to all rows.
    """

    kind: Kind
    action: Action
    condition: object | None = None
    values: Mapping[str, object] | None = None
    except_columns: tuple[str, ...] = ()
    replaces: bool = False

    @property
    def takes_all(self) -> bool:
        """Whether the clause is a `*` form, which assigns all columns."""
        return self.action is not Action.DELETE and self.values is None

    @property
    def title(self) -> str:
        """Return the clause's name in errors."""
        return f"when {self.kind} {self.action}"


def assigned(values: object, clause: str) -> Mapping[str, object]:
    """Return the `set` or `values` of a clause. Raises InvalidRequestError unless it maps column names to values."""
    if not isinstance(values, Mapping) or not values or not all(isinstance(name, str | Column) for name in values):
        raise InvalidRequestError(
            f"The clause {clause} needs a mapping of column names to values",
            cause=f"The argument is {values!r:.100}",
            remedy='Write for example {"amount": "source.amount"}, or use the clause for all columns',
        )
    return dict(values)


def names_of(columns: object) -> tuple[str, ...]:
    """Return `except_columns`. Raises InvalidRequestError unless it is a sequence of names."""
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not all(isinstance(c, str) for c in columns):
        raise InvalidRequestError(
            f"except_columns must be a sequence of column names, not {columns!r:.100}",
            remedy='Write for example except_columns=["created_at"]',
        )
    return tuple(columns)


def ensure_reachable(clauses: Sequence[Clause]) -> None:
    """Check that there is a clause, and that every clause can be reached.

    Raises:
        InvalidRequestError: There is no clause. Or a clause comes after one that applies to every row of its kind.
    """
    if not clauses:
        raise InvalidRequestError(
            "The merge has no clause", remedy="Add at least one, such as when_matched_update_all()"
        )
    if any(clause.replaces for clause in clauses) and len(clauses) != 2:
        raise InvalidRequestError(
            "The merge has replace_matched() and other clauses",
            cause="replace_matched() applies to every matched row, and to every row of the source",
            remedy="Leave the other clauses out, or use clauses without replace_matched()",
        )
    ended: set[Kind] = set()
    for clause in clauses:
        if clause.kind in ended:
            raise InvalidRequestError(
                f"The clause {clause.title} can never be reached",
                cause=f"An earlier clause without a condition applies to all rows that are {clause.kind}",
                remedy="Add a condition to the earlier clause, or put it last",
                clause=clause.title,
            )
        if clause.condition is None:
            ended.add(clause.kind)


@checked
class Merge:
    """A merge of a source into a table. Clauses are tried in the order of the calls.

        (table.merge(updates, "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_delete("s.is_gone")
            .when_matched_update_all()
            .when_not_matched_insert_all("NOT s.is_gone")
            .execute())

    The first clause of the row's kind whose condition is true applies to the row. Null is not true. A row without such
    a clause does not change. Nothing is read or written before `execute()`, which raises all errors. `explain()` shows
    the files that `execute()` would open. Every other method returns the merge itself.

    Conditions and values are Spark SQL or expressions. They name columns with the alias of their side (`s.amount`). The
    alias is optional if only one side has the name. A `not_matched` clause can use only columns of the source. A
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
            set: The new value of each column, as for `DeltaTable.update`. Other columns do not change. Generated
                columns are computed again.
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
            values: The value of each column. Other columns get their default, are generated, or are null.
        """
        assigned_values = assigned(values, "when not matched insert")
        return self._also(Clause(Kind.NOT_MATCHED, Action.INSERT, condition, assigned_values))

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
        """Delete table rows that match a source row, and insert every source row, even if several have the same keys.
        Such a merge has no other clause.

            table.merge(days, "t.day = s.day", source_alias="s", target_alias="t").replace_matched().execute()

        Args:
            values: As for `when_not_matched_insert`. None uses the source columns of the same names.
        """
        assigned_values = None if values is None else assigned(values, "replace matched")
        self._also(Clause(Kind.MATCHED, Action.DELETE, replaces=True))
        return self._also(Clause(Kind.NOT_MATCHED, Action.INSERT, values=assigned_values, replaces=True))

    def explain(self) -> ScanExplanation:
        """Return how many files and row groups of the table the merge would open. Partition values and statistics
        exclude the others, by the keys of the source. Print the result, or use its `to_dict()`.

        The call reads the keys of the source, which consumes a stream. It reads only the log and file footers of the
        table.

        Raises: As `execute`, if the merge does not fit. MissingFileError, TableError, StorageError: A file cannot be
        read.
        """
        return self._explain(tuple(self._clauses))

    def execute(self) -> CommitResult:
        """Run the merge and commit it.

        Returns: `skipped` if a transaction id is recorded already, or if no row changed.

        Raises:
            InvalidRequestError: There is no clause, a clause can never be reached, or an assignment is invalid. Also
                raised if rows are inserted, a scoped transaction id is recorded already, and the condition does not
                compare the columns of its scope. Nothing was committed.
            InvalidExpressionError, ColumnNotFoundError: A condition or a value does not fit. Nothing was written.
            SchemaMismatchError: Columns are missing or of other types. Nothing was written.
            ConstraintViolationError: Several source rows match one row of the table (the error names up to five keys),
                a new row breaks a rule of the table, or a row moves into a partition whose scoped transaction id is
                recorded. Nothing was committed.
            AppendOnlyError: The table is append-only. Nothing was committed.
            ConflictError: Another commit changed rows that this merge read. Nothing was committed.
        """
        return self._run(tuple(self._clauses))
