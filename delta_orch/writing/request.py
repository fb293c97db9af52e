"""What a caller asks of a write, checked before anything else happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import ensure_sequence_of_names
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.resolve import ensure_partition_predicate, resolve_predicate
from delta_orch.log.files.txn import TxnId
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.transaction import DEFAULT_MAX_ATTEMPTS, Transaction
from delta_orch.protocol.types import StructType

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
