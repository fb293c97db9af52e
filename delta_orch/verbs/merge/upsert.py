"""`upsert`: a merge by keys, with all columns."""

from __future__ import annotations

from collections.abc import Sequence

from delta_orch.engines.select import EngineChoice
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import ensure_sequence_of_names
from delta_orch.expressions.nodes import Column, Comparison, Expression
from delta_orch.expressions.tree import conjunction
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from delta_orch.verbs.merge.clauses import Action, Clause, Kind
from delta_orch.verbs.merge.run import MergeRequest, merge
from delta_orch.verbs.merge.sides import SOURCE, TARGET


def upsert(
    log: TableLog,
    snapshot: Snapshot,
    source: object,
    keys: Sequence[str],
    engine: EngineChoice,
    schema_mode: str | None,
    options: CommitOptions,
    bounds: tuple[Expression, ...] = (),
    *,
    lossless: bool = False,
) -> CommitResult:
    """Update the rows of the table that match a source row by key, and insert the other source rows.

    Args:
        bounds, lossless: See `MergeRequest`.

    Raises:
        ConstraintViolationError: Source rows share keys. A row lies outside the bounds, or matches a row in another
            part. Nothing was committed.
        SchemaMismatchError: The upsert is `lossless`, and the source does not fit.
        Other errors: As `DeltaTable.upsert`.
    """
    on = key_condition(keys)
    request = MergeRequest(source, on, SOURCE, TARGET, engine, schema_mode, bounds, tuple(keys), lossless)
    clauses = (Clause(Kind.MATCHED, Action.UPDATE), Clause(Kind.NOT_MATCHED, Action.INSERT))
    return merge(log, snapshot, request, clauses, options)


def key_condition(keys: Sequence[str]) -> Expression:
    """Return the condition that the key columns of both sides are equal (null-safe), under the default aliases.

    Raises InvalidRequestError: There is no key, or `keys` is not a sequence of names.
    """
    ensure_sequence_of_names(keys, "keys")
    if not keys:
        raise InvalidRequestError(
            "An upsert needs at least one key", remedy='Pass the key columns, such as keys=["id"]'
        )
    return conjunction(*(Comparison("<=>", Column((TARGET, key)), Column((SOURCE, key))) for key in keys))
