"""`CommitOptions`: what a caller may say about a commit, the same for every method that makes one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, TypedDict

from delta_orch.arguments import ensure_types
from delta_orch.errors import InvalidExpressionError, InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.txn import TxnId
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.log.files.effect import Effect
    from delta_orch.log.write.commit_base import CommitBase
    from delta_orch.log.write.staged_actions import StagedActions
    from delta_orch.protocol.actions import Action, Txn
    from delta_orch.table.configuration import TableConfiguration

TxnArgument = TxnId | tuple[str, int] | Sequence[TxnId | tuple[str, int]]
"""One idempotency key or several, as `TxnId` or as a plain `(app_id, version)`."""

SERIALIZABLE = "Serializable"
WRITE_SERIALIZABLE = "WriteSerializable"
VACUUM_START, VACUUM_END = "VACUUM START", "VACUUM END"
"""Operations between which files are deleted that no version within a retention names."""
SNAPSHOT_ISOLATION = "SnapshotIsolation"
ISOLATION_LEVELS = (WRITE_SERIALIZABLE, SERIALIZABLE, SNAPSHOT_ISOLATION)
"""The isolation levels of a transaction; a table may set the first two (`delta.isolationLevel`)."""

_LONG_MAX = 2**63 - 1


class CommitOptions(TypedDict, total=False):
    """Keywords of every method that commits. They reach the `Transaction` unchanged, which checks them.

    Attributes:
        txn: Idempotency keys, see `TxnId`. The commit happens at most once for each.
        user_metadata: Text for `commitInfo.userMetadata`.
        commit_info: Further keys for `commitInfo`. They cannot replace its own.
        isolation_level: `WriteSerializable`, `Serializable` or `SnapshotIsolation`. None means the table's
            `delta.isolationLevel`.
        read_version: The version from whose rows the change was worked out. The change starts from that one, and
            whatever others have changed since in the rows it concerns is a conflict, blind appends included: the level
            is `Serializable` unless one is given. An append concerns every row. The conflict is not retryable: the same
            call cannot succeed any more.
        operation_metrics: Further `commitInfo.operationMetrics`, beside those of the operation. A write of rows also
            takes a function that gives them once the rows are written.
        dry_run: Check and prepare everything, commit nothing and leave no file. `CommitResult.preview` has the actions.
        stage: Write everything but the commit. `CommitResult.staged` is the reference by which any process can read,
            publish or discard the result (`DeltaTable.staged`). For writes of rows.
    """

    txn: TxnArgument | None
    user_metadata: str | None
    commit_info: Mapping[str, object] | None
    isolation_level: str | None
    read_version: int | None
    operation_metrics: Mapping[str, int | str] | Callable[[], Mapping[str, int | str]] | None
    dry_run: bool
    stage: bool


class EveryRow(int):
    """A `read_version` from which every row counts as read. A statement's query reads the table again when the
    statement runs again."""


def ensure_options(options: Mapping[str, object], kind: type) -> None:
    """Check that keywords belong to a kind of options, a `TypedDict`, and that their values fit.

    Raises:
        InvalidRequestError: One does not. The error names the one it is close to.
    """
    ensure_types(options, kind)
    option_names = list(kind.__annotations__)
    for name in options:
        if name not in option_names:
            from difflib import get_close_matches

            near = get_close_matches(name, option_names, 1)
            remedy = f"Did you mean {near[0]}?" if near else f"Use one of {', '.join(option_names)}"
            if here := _ELSEWHERE.get(name.replace("_", "").lower()):
                remedy = f"Here it is {here}"
            raise InvalidRequestError(f"There is no option {name!r}", remedy=remedy, option=name)


_ELSEWHERE = {
    "predicate": "where, or replace_where of an overwrite",
    "partitionfilters": "where",
    "filters": "where",
    "mode": "append(…) or overwrite(…)",
    "configuration": "properties",
    "writerproperties": "properties, such as delta.parquet.compression.codec",
    "targetfilesize": "the property delta.targetFileSize",
    "targetsize": "target_file_size_bytes",
    "mergeschema": 'schema_mode="merge"',
    "overwriteschema": 'schema_mode="overwrite"',
    "replacewhere": "replace_where",
    "partitionby": "partition_by",
    "partitionoverwritemode": "partition_overwrite_mode",
    "custommetadata": "commit_info",
    "commitproperties": "commit_info and txn",
    "apptransactions": "txn",
    "txnappid": 'txn=("app", 7)',
    "txnversion": 'txn=("app", 7)',
    "storageoptions": "an argument of DeltaTable",
}
"""Names of `deltalake`, Polars and Delta on Spark, in lower case."""


def provenance_only(options: CommitOptions) -> CommitOptions:
    """The user's metadata for a preparing commit, without the parts that must happen once."""
    provenance: CommitOptions = {}
    if "user_metadata" in options:
        provenance["user_metadata"] = options["user_metadata"]
    if "commit_info" in options:
        provenance["commit_info"] = options["commit_info"]
    return provenance


def parse_txns(txn: TxnArgument | None) -> tuple[TxnId, ...]:
    """The caller's `txn` argument as `TxnId`s.

    Raises:
        InvalidRequestError: Not a `TxnId` or `(app_id, version)`, an empty app id, a version that is not a 64-bit
            integer ≥ 0, or one app id twice; or one only looks, and no other is recorded, or one has a scope.
    """
    if txn is None:
        return ()
    single = isinstance(txn, TxnId) or (isinstance(txn, tuple) and len(txn) == 2 and isinstance(txn[0], str))
    # An iterator gives its keys once, and a write asks for them more than once.
    if not single and (isinstance(txn, str) or not isinstance(txn, Collection)):
        raise _bad_txn(txn)
    keys: Collection[object] = (txn,) if single else txn  # type: ignore[assignment]
    txns = tuple(map(_parse_txn, keys))
    seen: set[str] = set()
    for parsed in txns:
        if parsed.app_id in seen:
            raise InvalidRequestError(
                f"txn names the application id {parsed.app_id!r} twice",
                remedy="Give one version for each application id",
                app_id=parsed.app_id,
            )
        seen.add(parsed.app_id)
    return txns


def ensure_unscoped(options: CommitOptions, problem: str) -> None:
    """Raises InvalidRequestError: An identifier has a scope, and the operation concerns the whole table."""
    if any(txn.scope is not None for txn in parse_txns(options.get("txn"))):
        raise InvalidRequestError(problem, remedy="Pass transaction ids without scope")


def _parse_txn(txn: object) -> TxnId:
    if isinstance(txn, tuple) and len(txn) == 2:
        parsed = TxnId(txn[0], txn[1])
    elif isinstance(txn, TxnId):
        parsed = txn
    else:
        raise _bad_txn(txn)
    version: object = parsed.version
    is_version = isinstance(version, Integral) and not isinstance(version, bool) and 0 <= int(version) <= _LONG_MAX
    if not (isinstance(parsed.app_id, str) and parsed.app_id and is_version):
        raise _bad_txn(txn)
    # NumPy has integers of its own, which JSON does not know.
    return parsed if type(version) is int else replace(parsed, version=int(parsed.version))


def _bad_txn(txn: object) -> InvalidRequestError:
    # Not its values: somebody may have passed a name and a password.
    parts = ", ".join(type(part).__name__ for part in txn[:3]) if isinstance(txn, tuple) else ""
    return InvalidRequestError(
        f"A {type(txn).__name__}{parts and f' ({parts})'} is not an idempotency key",
        remedy="Pass TxnId(app_id, version), (app_id, version) or a sequence of them; app_id is a non-empty string, "
        "version an integer from 0 to 2^63-1",
    )


def resolve_txns(txn: TxnArgument | None, schema: StructType, partition_columns: Sequence[str]) -> tuple[TxnId, ...]:
    """The keys with resolved scopes that depend only on partition columns.

    Raises:
        InvalidExpressionError, ColumnNotFoundError: A scope does not fit, or reads another column.
        Otherwise as `parse_txns`.
    """
    return tuple(
        t if t.scope is None else replace(t, scope=_resolve_scope(t, t.scope, schema, partition_columns))
        for t in parse_txns(txn)
    )


def _resolve_scope(txn: TxnId, scope: Expression, schema: StructType, partition_columns: Sequence[str]) -> Expression:
    from delta_orch.expressions.resolve import ensure_partition_predicate, resolve_predicate

    if isinstance(scope, str):
        from delta_orch.expressions.parse import asks_for_time

        if asks_for_time(scope):
            raise InvalidExpressionError(
                f"The scope of txn {txn.app_id!r} asks for the time",
                cause="A repetition on another day would be taken for another write",
                remedy="Write the day as a constant",
            )
    resolved = resolve_predicate(scope, schema)
    ensure_partition_predicate(resolved, partition_columns, f"the scope of txn {txn.app_id!r}")
    return resolved


# How a transaction ended, and what it would have committed.


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that stands, as its writer knows it: what upkeep after the commit works from.

    Attributes:
        actions: As they were written.
        txns: Its transaction identifiers.
        txn_id: `commitInfo.txnId`.
        operation: `commitInfo.operation`.
        in_commit_timestamp_ms: None for a table without in-commit timestamps.
        before: The version it follows; None where it created the table.
        table: The table after it.
    """

    version: int
    actions: StagedActions
    txns: tuple[Txn, ...]
    txn_id: str
    operation: str
    in_commit_timestamp_ms: int | None
    before: CommitBase | None
    table: TableConfiguration


@dataclass(frozen=True, slots=True)
class CommitPreview:
    """A commit that was made ready and not written.

    Attributes:
        version: The version it would have become without other commits.
        content: Its bytes, one action a line.
        adds: Files it would add, columns of `file_columns.ADD_SCHEMA`. They do not exist: what was written to learn
            about them (sizes, statistics, violated constraints) was outside the table and is deleted.
        removes: Files it would remove: the known columns of `file_columns.ADD_SCHEMA`.
    """

    version: int
    content: bytes = field(repr=False)
    adds: tuple[pa.Table, ...] = field(repr=False, compare=False)
    removes: tuple[pa.Table, ...] = field(repr=False, compare=False)

    def actions(self) -> list[Action]:
        """Every action, as an object each; for thousands of files take `adds` and `removes`."""
        import orjson

        from delta_orch.protocol.action_json import parse_action

        parsed = (parse_action(orjson.loads(line)) for line in self.content.splitlines())
        return [action for action in parsed if action is not None]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of `Transaction.commit` and of every verb that commits.

    Attributes:
        version: The committed version. If nothing was committed, the newest version that was read.
        skipped: Nothing was committed, because there was nothing left to do: the transaction identifiers are recorded
            already, or a table to be created exists already as wanted.
        skipped_txns: Identifiers that were recorded already; the files in their scope are not in the commit.
        operation_metrics: As written to `commitInfo`.
        attempts: How often the commit was tried; 0 where `skipped` was known before the first.
        rebased_versions: Versions of other writers that this commit was ordered after, ascending.
        timestamp_ms: When `version` was committed, milliseconds since the epoch, as recorded: of two commits of one
            moment, history gives the second a later time.
        preview: Of a dry run, which has committed nothing: what it would have. None otherwise.
        staged: Of a staged write, which has committed nothing: the reference for `DeltaTable.staged`. None otherwise.
        effect: What the commit did to rows, or would do; None where it names no files, or nothing was committed.
        measured: Figures of the work that `commitInfo` does not have: files looked at, files opened.
    """

    version: int
    skipped: bool
    skipped_txns: tuple[TxnId, ...] = ()
    operation_metrics: Mapping[str, int | str] = field(default_factory=dict)
    attempts: int = 0
    rebased_versions: tuple[int, ...] = ()
    timestamp_ms: int = 0
    preview: CommitPreview | None = None
    staged: str | None = None
    effect: Effect | None = None
    measured: Mapping[str, int] = field(default_factory=dict)

    @property
    def metrics(self) -> Mapping[str, int | str]:
        """All figures of the operation: `operation_metrics`, and what was `measured` beside them."""
        return {**self.operation_metrics, **self.measured}
