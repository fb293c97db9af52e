"""The condition of an upsert: the same keys on both sides."""

from __future__ import annotations

from collections.abc import Sequence

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import ensure_sequence_of_names
from delta_orch.expressions.nodes import Column, Comparison, Expression
from delta_orch.expressions.tree import conjunction
from delta_orch.verbs.merge.sides import SOURCE, TARGET


def key_condition(keys: Sequence[str]) -> Expression:
    """Null-safe equality of columns of both sides, under the default aliases of a merge.

    Raises InvalidRequestError: There is no key, or `keys` is not a sequence of names.
    """
    ensure_sequence_of_names(keys, "keys")
    if not keys:
        raise InvalidRequestError("An upsert needs at least one key", remedy='Name its columns, such as keys=["id"]')
    return conjunction(*(Comparison("<=>", Column((TARGET, key)), Column((SOURCE, key))) for key in keys))
