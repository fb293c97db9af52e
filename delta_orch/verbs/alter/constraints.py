"""CHECK constraints (PROTOCOL, "CHECK Constraints")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Comparison, Expression, Literal, Not
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.protocol.types import BOOLEAN
from delta_orch.table.column_dependencies import constraints_of
from delta_orch.table.property_rules import CONSTRAINT_PREFIX
from delta_orch.verbs.alter.draft import Draft, RowProof


@dataclass(frozen=True, slots=True)
class AddConstraint:
    """A predicate that must be true for every row, old and new; null is a violation."""

    name: str
    expression: str
    operation = "ADD CONSTRAINT"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, InvalidExpressionError, ColumnNotFoundError."""
        if not isinstance(self.name, str) or not self.name.strip():
            raise InvalidRequestError("A constraint needs a name", remedy="Pass one, such as 'positive_amount'")
        if _find_constraint(draft, self.name) is not None:
            raise InvalidRequestError(
                f"There is a constraint {self.name!r} already",
                remedy="Take another name, or drop that one first",
                constraint=self.name,
            )
        condition = resolve_predicate(self.expression, draft.schema)
        key = f"{CONSTRAINT_PREFIX}{self.name.lower()}"
        proof = RowProof(f"CHECK constraint {self.name}", self.expression, is_violated(condition))
        return draft.with_configuration({**draft.configuration, key: self.expression}).with_proof(proof)

    def parameters(self, before: Draft, after: Draft) -> dict[str, Any]:
        return {"name": self.name, "expr": self.expression}


@dataclass(frozen=True, slots=True)
class DropConstraint:
    name: str
    if_exists: bool = False
    operation = "DROP CONSTRAINT"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError."""
        key = _find_constraint(draft, self.name)
        if key is None:
            if self.if_exists:
                return draft
            known = ", ".join(sorted(constraints_of(draft.configuration))) or "none"
            raise InvalidRequestError(
                f"There is no constraint {self.name!r}",
                cause=f"The table's constraints: {known}",
                remedy="Pass if_exists=True where that does not matter",
                constraint=self.name,
            )
        return draft.with_configuration({k: v for k, v in draft.configuration.items() if k != key})

    def parameters(self, before: Draft, after: Draft) -> dict[str, Any]:
        key = _find_constraint(before, self.name)
        if key is None:
            return {"name": self.name, "existed": False}
        return {"name": self.name, "expr": before.configuration[key], "existed": True}


def is_violated(condition: Expression) -> Expression:
    """The rows for which a condition is false or null."""
    if isinstance(condition, Literal):
        return Literal(condition.value is not True, BOOLEAN)
    return Not(Comparison("<=>", condition, Literal(True, BOOLEAN)))


def _find_constraint(draft: Draft, name: str) -> str | None:
    wanted = f"{CONSTRAINT_PREFIX}{name}".lower()
    return next((key for key in draft.configuration if key.lower() == wanted), None)
