"""The clauses of a merge as the caller gives them, and the rules that need no table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Column


class Kind(StrEnum):
    """Which rows a clause is about; the value is what an error calls it."""

    MATCHED = "matched"
    NOT_MATCHED = "not matched"
    NOT_MATCHED_BY_SOURCE = "not matched by source"


class Action(StrEnum):
    """What a clause does; the value is what `commitInfo` calls it."""

    UPDATE = "update"
    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause.

    Attributes:
        condition: A predicate as the user gave it; None takes every row of the kind.
        values: What columns become, by name as the user gave it; None for the source's columns of the same name.
        except_columns: Without `values`: source columns that are left aside.
        replaces: It is one of the two of `replace_matched`, which are about all rows.
    """

    kind: Kind
    action: Action
    condition: object | None = None
    values: Mapping[str, object] | None = None
    except_columns: tuple[str, ...] = ()
    replaces: bool = False

    @property
    def takes_all(self) -> bool:
        """Whether it is a `*` form."""
        return self.action is not Action.DELETE and self.values is None

    @property
    def title(self) -> str:
        """What an error calls the clause."""
        return f"when {self.kind} {self.action}"


def assigned(values: object, clause: str) -> Mapping[str, object]:
    """The `set` or `values` of a clause. Raises InvalidRequestError unless it maps names of columns to values."""
    if not isinstance(values, Mapping) or not values or not all(isinstance(name, str | Column) for name in values):
        raise InvalidRequestError(
            f"The clause {clause} needs a mapping of column names to values",
            cause=f"It got {values!r:.100}",
            remedy='Write for example {"amount": "source.amount"}, or use the clause that takes all columns',
        )
    return dict(values)


def names_of(columns: object) -> tuple[str, ...]:
    """`except_columns` as given. Raises InvalidRequestError unless it is a sequence of names."""
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not all(isinstance(c, str) for c in columns):
        raise InvalidRequestError(
            f"except_columns must be a sequence of column names, not {columns!r:.100}",
            remedy='Write for example except_columns=["created_at"]',
        )
    return tuple(columns)


def ensure_reachable(clauses: Sequence[Clause]) -> None:
    """Check that there is a clause, and none stands behind one that takes every row of its kind.

    Raises:
        InvalidRequestError: Otherwise.
    """
    if not clauses:
        raise InvalidRequestError(
            "The merge has no clause", remedy="Add at least one, such as when_matched_update_all()"
        )
    if any(clause.replaces for clause in clauses) and len(clauses) != 2:
        raise InvalidRequestError(
            "The merge replaces what matches, and has other clauses, too",
            cause="replace_matched() decides about every row that matches, and about every row of the source",
            remedy="Leave the other clauses out, or write clauses alone",
        )
    ended: set[Kind] = set()
    for clause in clauses:
        if clause.kind in ended:
            raise InvalidRequestError(
                f"The clause {clause.title} can never be reached",
                cause=f"A clause for rows that are {clause.kind} before it has no condition and takes all of them",
                remedy="Give the clause before it a condition, or put it last",
                clause=clause.title,
            )
        if clause.condition is None:
            ended.add(clause.kind)
