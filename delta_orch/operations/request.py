"""What a caller asks of a write, checked before anything else happens."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from delta_orch.errors import ColumnNotFoundError, InvalidExpressionError, InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.tree import columns_of, is_opaque
from delta_orch.log.commits.transaction import DEFAULT_MAX_ATTEMPTS, Transaction
from delta_orch.log.commits.txn import TxnId
from delta_orch.log.snapshot import Snapshot
from delta_orch.log.table_log import TableLog
from delta_orch.protocol.types import StructField, StructType

TxnArgument = TxnId | tuple[str, int] | Sequence[TxnId | tuple[str, int]]
"""One idempotency key or several, as `TxnId` or as a plain `(app_id, version)`."""

_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """What rides along with a commit.

    Attributes:
        txns: Idempotency keys; the commit happens at most once for each.
        user_metadata: Free text for `commitInfo.userMetadata`.
        commit_info: Further keys for `commitInfo`.
        isolation_level: `WriteSerializable`, `Serializable` or `SnapshotIsolation`; None takes the table's.
        operation_metrics: Further `commitInfo.operationMetrics`, beside those of the verb.
        dry_run: Commit nothing and leave no file; the result's `preview` says what would have been committed.
    """

    txns: tuple[TxnId, ...] = ()
    user_metadata: str | None = None
    commit_info: Mapping[str, Any] | None = None
    isolation_level: str | None = None
    operation_metrics: Mapping[str, int | str] | None = None
    dry_run: bool = False

    @classmethod
    def parse(
        cls,
        txn: TxnArgument | None,
        user_metadata: str | None,
        commit_info: Mapping[str, Any] | None,
        isolation_level: str | None,
        operation_metrics: Mapping[str, int | str] | None,
        dry_run: bool,
    ) -> CommitOptions:
        """From the arguments of a verb. Raises as `parse_txns`."""
        return cls(parse_txns(txn), user_metadata, commit_info, isolation_level, operation_metrics, dry_run)

    def of_preparation(self) -> CommitOptions:
        """Those of a commit that prepares the one asked for: who makes it and why, nothing that is to happen once."""
        return CommitOptions(user_metadata=self.user_metadata, commit_info=self.commit_info)

    def begin(
        self,
        table_log: TableLog,
        snapshot: Snapshot | None,
        operation: str,
        parameters: Mapping[str, Any],
        txns: Sequence[TxnId] | None = None,
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> Transaction:
        """A transaction with all of it.

        Args:
            txns: The keys with their scopes resolved, where they have some.
            max_attempts: How often it tries before it gives up.

        Raises as `Transaction`.
        """
        return Transaction(
            table_log,
            snapshot,
            operation=operation,
            operation_parameters=parameters,
            operation_metrics=self.operation_metrics,
            txns=self.txns if txns is None else txns,
            user_metadata=self.user_metadata,
            commit_info=self.commit_info,
            isolation_level=self.isolation_level,
            dry_run=self.dry_run,
            max_attempts=max_attempts,
        )


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """What a table is to be if this write creates it. `partition_by` must agree with a table that is there already;
    the rest is only looked at when the table is created."""

    partition_by: tuple[str, ...] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    cluster_by: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        partition_by: Sequence[str] | None,
        cluster_by: Sequence[str] | None,
        properties: Mapping[str, str] | None,
        name: str | None,
        description: str | None,
    ) -> TableDefinition:
        """From the arguments of a verb.

        Raises:
            InvalidRequestError: A text where column names are asked for.
        """
        ensure_sequence_of_names(partition_by or (), "partition_by")
        ensure_sequence_of_names(cluster_by or (), "cluster_by")
        partition_columns = None if partition_by is None else tuple(partition_by)
        return cls(partition_columns, dict(properties or {}), name, description, tuple(cluster_by or ()))


def parse_txns(txn: TxnArgument | None) -> tuple[TxnId, ...]:
    """The caller's `txn` argument as `TxnId`s.

    Raises:
        InvalidRequestError: Not a `TxnId` or `(app_id, version)`, an empty app id, a version that is no 64-bit integer
            ≥ 0, or one app id twice.
    """
    if txn is None:
        return ()
    single = isinstance(txn, TxnId) or (isinstance(txn, tuple) and len(txn) == 2 and isinstance(txn[0], str))
    txns = tuple(_parse_txn(t) for t in ((txn,) if single else _iterable(txn)))
    seen: set[str] = set()
    for t in txns:
        if t.app_id in seen:
            raise InvalidRequestError(
                f"txn names the application id {t.app_id!r} twice",
                remedy="Give one version for each application id",
                app_id=t.app_id,
            )
        seen.add(t.app_id)
    return txns


def _iterable(txn: Any) -> Iterable[Any]:
    if isinstance(txn, str) or not isinstance(txn, Iterable):
        raise _bad_txn(txn)
    return txn


def _parse_txn(txn: Any) -> TxnId:
    if isinstance(txn, TxnId):
        parsed = txn
    elif isinstance(txn, tuple) and len(txn) == 2:
        parsed = TxnId(txn[0], txn[1])
    else:
        raise _bad_txn(txn)
    version: Any = parsed.version
    version_ok = isinstance(version, int) and not isinstance(version, bool) and 0 <= version <= _LONG_MAX
    if not (isinstance(parsed.app_id, str) and parsed.app_id and version_ok):
        raise _bad_txn(txn)
    return parsed


def _bad_txn(txn: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f"{txn!r} is not an idempotency key",
        remedy="Pass TxnId(app_id, version), (app_id, version) or a sequence of them; app_id a string that is not "
        "empty, version an integer from 0 to 2^63-1",
    )


def resolve_predicate(where: str | Expression, schema: StructType) -> Expression:
    """A predicate as the user gave it, fitted to the table's columns.

    Raises:
        InvalidExpressionError, ColumnNotFoundError: It cannot be read, or does not fit the schema.
    """
    if not isinstance(where, str | Expression):
        raise InvalidExpressionError(
            f"a predicate must be SQL text or an Expression, not {type(where).__name__}",
            remedy="Write it as text in Spark SQL, for example \"day = '2013-01-01'\"",
        )
    expression = parse_expression(where) if isinstance(where, str) else where
    return resolve_expression(expression, schema)


def resolve_txns(txns: Sequence[TxnId], schema: StructType, partition_columns: Sequence[str]) -> tuple[TxnId, ...]:
    """The keys with their scopes resolved, and known to depend on partition columns alone.

    Raises:
        InvalidExpressionError, ColumnNotFoundError: A scope does not fit, or looks at another column.
    """
    return tuple(t if t.scope is None else replace(t, scope=_resolve_scope(t, schema, partition_columns)) for t in txns)


def _resolve_scope(txn: TxnId, schema: StructType, partition_columns: Sequence[str]) -> Expression:
    assert txn.scope is not None
    scope = resolve_predicate(txn.scope, schema)
    ensure_partition_predicate(scope, partition_columns, f"the scope of txn {txn.app_id!r}")
    return scope


def ensure_partition_predicate(where: Expression, partition_columns: Sequence[str], what: str) -> None:
    """Check that the log alone decides a resolved predicate, for every file exactly.

    Raises:
        InvalidExpressionError: It looks at other columns, or holds text that only an engine can evaluate.
    """
    others = sorted({c.path[0] for c in columns_of(where)} - set(partition_columns))
    if others:
        raise InvalidExpressionError(
            f"{what} uses {', '.join(others)}, which {'is no partition column' if len(others) == 1 else 'are none'}",
            remedy=f"Use only partition columns ({', '.join(partition_columns) or 'this table has none'})",
            columns=others,
        )
    if is_opaque(where):
        raise InvalidExpressionError(
            f"{what} is more than comparisons of partition columns with constants",
            cause="It must be decided from the log, without running an engine",
            remedy="Use comparisons, IN, IS NULL, LIKE 'prefix%', AND, OR and NOT",
        )


def resolve_column_names(names: Sequence[str], schema: StructType, what: str) -> tuple[str, ...]:
    """Top-level names as the schema spells them. Each is a name as it stands, dots, spaces and backticks included, or
    else one in backticks as SQL quotes it; without regard to case.

    Raises:
        ColumnNotFoundError: The schema has no such column, or it is a field inside one.
        InvalidRequestError: One is named twice.
    """
    ensure_sequence_of_names(names, what)
    resolved: list[str] = []
    for name in names:
        found = find_named_column(name, schema) if isinstance(name, str) else None
        if found is None:
            raise column_not_found(name, schema, what)
        if found.name in resolved:
            raise InvalidRequestError(
                f"{what} names the column {found.name!r} twice", remedy="Name each column once", column=found.name
            )
        resolved.append(found.name)
    return tuple(resolved)


def ensure_sequence_of_names(names: Sequence[str], what: str) -> None:
    """Raises InvalidRequestError where one name is given instead of several."""
    if isinstance(names, str):
        raise InvalidRequestError(
            f"{what} must be a sequence of column names, not the string {names!r}", remedy=f"Write [{names!r}]"
        )


def find_named_column(name: str, schema: StructType) -> StructField | None:
    """The column of that name as it stands, or as SQL quotes it; without regard to case."""
    found = schema.find(name)
    if found is None and len(name) > 2 and name[0] == name[-1] == "`":
        found = schema.find(name[1:-1].replace("``", "`"))
    return found


def column_not_found(name: Any, schema: StructType, what: str) -> ColumnNotFoundError:
    """The error for a name that is none of the schema's; it names the likeliest one."""
    parent = schema.find(name.split(".")[0].strip("`")) if isinstance(name, str) and "." in name else None
    if parent is not None and isinstance(parent.data_type, StructType):
        return ColumnNotFoundError(
            f"{what} names {name!r}, which is no column of its own",
            cause=f"It looks like a field inside the column {parent.name!r}",
            remedy=f"Name {parent.name!r}",
            column=name,
        )
    close = difflib.get_close_matches(str(name).lower(), [n.lower() for n in schema.names], n=1, cutoff=0.6)
    likely = schema.find(close[0]) if close else None
    hint = "" if likely is None else f"Did you mean {likely.name!r}? "
    return ColumnNotFoundError(
        f"{what} names the column {name!r}, which does not exist",
        remedy=f"{hint}The columns are {', '.join(schema.names)}",
        column=name,
    )
