"""A held commit: its whole content as one file of the table, from which any process can commit it. One transaction ends
with the file instead of its commit; another one resumes from it.

The file lies in a hidden directory, so no other client reads it. It names data files that no commit names, so vacuum
takes both for garbage once they are older than the retention.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

from delta_orch.errors import DeltaError, FileMissingInStoreError, InvalidRequestError, StagedWriteGoneError
from delta_orch.expressions.checked import check_expression
from delta_orch.expressions.nodes import Expression, Opaque
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import with_columns
from delta_orch.log.files.commit_json import serialize_actions
from delta_orch.log.files.file_columns import FILE_TYPES, FileTable
from delta_orch.log.files.txn import TxnId
from delta_orch.log.write.commit_options import SERIALIZABLE, CommitResult
from delta_orch.log.write.staged_actions import ReadSet, StagedActions
from delta_orch.log.write.staging import Provenance
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.action_json import parse_action
from delta_orch.protocol.actions import DomainMetadata, JsonValue, Metadata, Protocol
from delta_orch.protocol.arrow_building import string_array
from delta_orch.protocol.paths import STAGED_DIRECTORY, decode_path
from delta_orch.protocol.schema import parse_schema, serialize_schema
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyroaring import BitMap64

    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.log.write.commit_options import CommitOptions
    from delta_orch.log.write.deletion_vector_writer import MarkedRows
    from delta_orch.storage.base import LogStore


_FORMAT = 1
_NONE = type(None)
# The fields of a file that a stranger may have written. The type of each value is checked first.
_KINDS: Mapping[str, tuple[type, ...]] = {
    "snapshotVersion": (int, _NONE), "tableId": (str,), "schema": (str,), "resultSchema": (str,), "stagedTime": (int,),
    "readVersion": (int, _NONE), "isolationLevel": (str, _NONE), "provenance": (dict,), "txns": (list,),
    "skippedTxns": (list,), "tombstones": (list,), "written": (list,), "moved": (list,),
    "takenBack": (list,),
}  # fmt: skip
_PROVENANCE_KINDS: Mapping[str, tuple[type, ...]] = {
    "operation": (str,), "parameters": (dict,), "user_metadata": (str, _NONE), "more": (dict,), "own_metrics": (dict,),
    "metrics": (dict,), "rows_preserved": (bool,), "predicate": (str, _NONE), "txn_id": (str,),
}  # fmt: skip
_TXN_KINDS: Mapping[str, tuple[type, ...]] = {
    "app_id": (str,), "version": (int,), "scope": (str, _NONE), "follows": (int, _NONE),
    "ordered": (bool,), "is_unit": (bool,), "replaces": (bool,),
}  # fmt: skip


def reference_path(reference: str) -> str:
    """The file of a held commit. Raises InvalidRequestError: `reference` cannot be the name of one."""
    if not isinstance(reference, str) or not reference.replace("-", "").isalnum() or not reference.isascii():
        raise InvalidRequestError(
            f"{reference!r} is not a reference to a staged write", remedy="Pass `CommitResult.staged` of the write"
        )
    return f"{STAGED_DIRECTORY}/{reference}.json"


@dataclass(frozen=True, slots=True)
class HeldCommit:
    """The content of a held commit.

    Attributes:
        snapshot_version: The version it starts from; None where it creates the table.
        table_id: `metaData.id` of the table.
        schema, result_schema: The table's columns before the commit, which `reads` is about, and after it, which the
            scopes of txns are about.
        reads, staged, provenance: The transaction's.
        marks: The rows it deletes by marking them; their vectors are written.
        written: Files that were written for it, relative to the root.
        txns, skipped_txns, read_version, isolation_level: The remaining parts of its `CommitOptions`.
        taken_back: As of `Transaction.take_back`.
        staged_ms: When it was held back, milliseconds since the epoch.
    """

    snapshot_version: int | None
    table_id: str
    schema: StructType
    result_schema: StructType
    reads: ReadSet
    staged: StagedActions
    provenance: Provenance
    marks: MarkedRows | None = None
    written: tuple[str, ...] = ()
    txns: tuple[TxnId, ...] = ()
    skipped_txns: tuple[TxnId, ...] = ()
    read_version: int | None = None
    isolation_level: str | None = None
    taken_back: Mapping[str, int] = field(default_factory=dict)
    staged_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    @property
    def reference(self) -> str:
        """Its name, which is `commitInfo.txnId` of the commit."""
        return self.provenance.txn_id

    def save(self, store: LogStore, after: Sequence[str]) -> None:
        """Write its file, no sooner than the files `after` are durable. Raises StorageError; no file is left."""
        with store.stage(STAGED_DIRECTORY, self._content(), after=after) as file:
            file.put_if_absent(reference_path(self.reference))

    def _content(self) -> bytes:
        provenance = asdict(self.provenance)
        small = [a for a in (self.staged.protocol, self.staged.metadata) if a is not None]
        actions = serialize_actions([*small, *self.staged.domain_metadata.values()])
        return orjson.dumps(
            {
                "format": _FORMAT,
                "snapshotVersion": self.snapshot_version,
                "tableId": self.table_id,
                "schema": serialize_schema(self.schema),
                "resultSchema": serialize_schema(self.result_schema),
                "stagedTime": self.staged_ms,
                "readVersion": self.read_version,
                "isolationLevel": self.isolation_level,
                "provenance": provenance,
                "txns": [_txn_json(txn) for txn in self.txns],
                "takenBack": [[name, version] for name, version in self.taken_back.items()],
                "skippedTxns": [_txn_json(txn) for txn in self.skipped_txns],
                "reads": _reads_json(self.reads, self.schema),
                "actions": [orjson.loads(line) for line in actions.splitlines()],
                "tombstones": self.staged.tombstones,
                "adds": [_pack(files) for files in self.staged.adds],
                "moved": self.staged.moved,
                "removes": [[_pack(files), data_change] for files, data_change in self.staged.removes],
                "changes": [_pack(files) for files in self.staged.changes],
                "written": self.written,
                "marks": None if self.marks is None else _marks_json(self.marks),
            }
        )


def load_held_commit(store: LogStore, reference: str) -> HeldCommit:
    """Read the file of a held commit.

    Raises:
        StagedWriteGoneError: There is no such file: it was discarded, vacuum deleted it, or it belongs to another
            table.
        InvalidRequestError: `reference` names none, or a release wrote it that this one does not understand.
        StorageError: It cannot be read.
    """
    try:
        return _parsed(orjson.loads(store.read_bytes(reference_path(reference))), reference)
    except FileMissingInStoreError as e:
        raise StagedWriteGoneError(
            f"There is no staged write {reference} in {store.uri}",
            cause="It was discarded, vacuum has removed it, or it belongs to another table",
            remedy="Stage the write again",
            reference=reference,
        ) from e
    except DeltaError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OSError, OverflowError, pa.ArrowException) as e:
        raise InvalidRequestError(
            f"The staged write {reference} cannot be read",
            cause=f"{type(e).__name__}: {e}",
            remedy="Stage the write again; vacuum removes this one",
            reference=reference,
        ) from e


def _parsed(content: dict[str, JsonValue], reference: str) -> HeldCommit:
    if content.get("format") != _FORMAT:
        raise InvalidRequestError(
            f"The staged write {reference} has the format {content.get('format')!r}, which this release does not read",
            remedy="Publish it with the release that staged it, or stage it again",
            reference=reference,
        )
    _ensure_types(content, _KINDS)
    _ensure_types(content["provenance"], _PROVENANCE_KINDS)
    for txn in (*content["txns"], *content["skippedTxns"]):
        _ensure_types(txn, _TXN_KINDS)
    for path in (*content["written"], *content["tombstones"]):
        if not isinstance(path, str):
            raise TypeError("a path is not text")
    for name, version in content["takenBack"]:
        if not isinstance(name, str) or type(version) is not int:
            raise TypeError("an identifier that is taken back is of another type")
    if content["provenance"]["txn_id"] != reference:
        raise ValueError("it has another name inside")
    schema, result_schema = parse_schema(content["schema"]), parse_schema(content["resultSchema"])
    actions = [parse_action(action) for action in content["actions"]]
    staged = StagedActions(
        adds=[_unpack(text) for text in content["adds"]],
        moved=_moved(content),
        removes=[(_unpack(text), data_change) for text, data_change in content["removes"]],
        changes=[_unpack(text) for text in content["changes"]],
        metadata=next((action for action in actions if isinstance(action, Metadata)), None),
        protocol=next((action for action in actions if isinstance(action, Protocol)), None),
        domain_metadata={action.domain: action for action in actions if isinstance(action, DomainMetadata)},
        tombstones=tuple(content["tombstones"]),
    )
    return HeldCommit(
        snapshot_version=content["snapshotVersion"],
        table_id=content["tableId"],
        schema=schema,
        result_schema=result_schema,
        reads=_reads(content["reads"], schema),
        staged=staged,
        provenance=Provenance(**content["provenance"]),
        marks=None if content["marks"] is None else _marks(content["marks"]),
        written=tuple(content["written"]),
        txns=tuple(_txn(txn, result_schema) for txn in content["txns"]),
        skipped_txns=tuple(_txn(txn, result_schema) for txn in content["skippedTxns"]),
        read_version=content["readVersion"],
        isolation_level=content["isolationLevel"],
        taken_back=dict(content["takenBack"]),
        staged_ms=content["stagedTime"],
    )


def _moved(content: Mapping[str, JsonValue]) -> list[int | None]:
    moved: list[int | None] = content["moved"]
    if len(moved) != len(content["adds"]) or any(type(count) not in (int, _NONE) for count in moved):
        raise TypeError("moved rows are of another type")
    return moved


def _pack(files: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, files.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(files)
    return base64.b64encode(sink.getvalue()).decode()


def _unpack(text: str) -> pa.Table:
    """Raises ValueError, OSError, pa.ArrowException: These are no files."""
    files = pa.ipc.open_stream(base64.b64decode(text)).read_all()
    # Arrow trusts the buffer sizes in a stream, and a stranger may have written this one.
    files.validate(full=True)
    if any(FILE_TYPES.get(column.name) != column.type for column in files.schema):
        raise ValueError("a list of files has other columns")
    if FileTable(files).path.null_count:
        raise ValueError("a file has no path")
    return files


def _ensure_types(content: Mapping[str, JsonValue], kinds: Mapping[str, tuple[type, ...]]) -> None:
    """Raises TypeError: A value is of another type."""
    for name, allowed in kinds.items():
        if type(content[name]) not in allowed:
            raise TypeError(f"{name} is of another type")


def _txn_json(txn: TxnId) -> dict[str, object]:
    scope = None if txn.scope is None else to_spark_sql(txn.scope)
    return {**{f.name: getattr(txn, f.name) for f in fields(txn)}, "scope": scope}


def _txn(value: Mapping[str, JsonValue], schema: StructType) -> TxnId:
    scope = None if value["scope"] is None else _predicate(value["scope"], schema)
    return TxnId(**{**value, "scope": None if scope is None else _gated(scope)})


def _predicate(text: str, schema: StructType) -> Expression:
    from delta_orch.expressions.parse import parse_expression

    return resolve_expression(parse_expression(text), schema)


def _gated(predicate: Expression) -> Expression:
    """A predicate that a stranger may have staged: of what has no node of its own, an engine gets what the gate lets
    through. Raises InvalidExpressionError: Something is not allowed."""

    def checked(text: Opaque) -> Expression:
        return Opaque(check_expression(text.sql, "the predicate of a staged write").sql, text.columns)

    return with_columns(predicate, lambda column: column, checked)


def _reads_json(reads: ReadSet, schema: StructType) -> dict[str, object]:
    predicates = [to_spark_sql(predicate) for predicate in reads.predicates]
    survive = all(map(partial(_survives, schema=schema), predicates, reads.predicates))
    return {
        # A predicate that text does not carry exactly counts as one that every row satisfies: that errs towards a
        # conflict.
        "wholeTable": reads.whole_table or not survive,
        "predicates": predicates if survive else [],
        "partitions": [partition.to_pydict() for partition in reads.partitions],
        "files": [keys.to_pylist() for keys in reads.files],
        "moved": [keys.to_pylist() for keys in reads.moved],
        "lookedAt": [paths.to_pylist() for paths in reads.looked_at],
    }


def _survives(text: str, predicate: Expression, *, schema: StructType) -> bool:
    try:
        resolved = _predicate(text, schema)
        _gated(resolved)
        return resolved == predicate
    except DeltaError:
        return False


def _reads(value: Mapping[str, JsonValue], schema: StructType) -> ReadSet:
    return ReadSet(
        whole_table=value["wholeTable"],
        predicates=[_gated(_predicate(text, schema)) for text in value["predicates"]],
        partitions=[
            pa.table({name: string_array(values) for name, values in partition.items()})
            for partition in value["partitions"]
        ],
        files=[string_array(keys) for keys in value["files"]],
        moved=[string_array(keys) for keys in value["moved"]],
        looked_at=[string_array(paths) for paths in value["lookedAt"]],
    )


def _marks_json(marks: MarkedRows) -> dict[str, object]:
    def texts(bitmaps: Sequence[BitMap64]) -> list[str]:
        return [base64.b64encode(bitmap.serialize()).decode() for bitmap in bitmaps]

    return {
        "files": _pack(marks.files),
        "marked": texts(marks.marked),
        "deleted": texts(marks.deleted),
        "randomPrefixLength": marks.random_prefix_length,
    }


def _marks(value: Mapping[str, JsonValue]) -> MarkedRows:
    from pyroaring import BitMap64

    from delta_orch.log.write.deletion_vector_writer import MarkedRows

    def bitmaps(texts: Sequence[str]) -> list[BitMap64]:
        return [BitMap64.deserialize(base64.b64decode(text)) for text in texts]

    return MarkedRows(
        _unpack(value["files"]), bitmaps(value["marked"]), bitmaps(value["deleted"]), value["randomPrefixLength"]
    )


class HeldTransaction(Transaction):
    """A transaction whose `commit` writes everything but the commit, and keeps all of it in a `HeldCommit`."""

    def commit(self) -> CommitResult:
        """Hold the commit back. Whether other commits conflict with it is found out when it is made.

        Returns: `staged` names it. `skipped` where there is nothing to commit.

        Raises:
            InvalidRequestError: A dry run leaves nothing that could be kept.
            StorageError and others: As `Transaction.commit`, except conflicts. Nothing was kept.
        """
        if self._is_dry_run:
            raise InvalidRequestError("A write is staged, or a dry run", remedy="Leave out stage, or dry_run")
        self._ensure_committable()
        if self._base is not None and self._leave_out(self.stale_txns(), self._base):
            return self._skip(self._base, attempt=0)
        self.ensure_follows()
        version, result = self._next_version, self._result()
        # A value that cannot be serialized now cannot be serialized later.
        self._serialize(version)
        after = self._paths_just_written()
        vectors = [] if self._marks is None else [file.path for file in self._marks.vector_files]
        self._write_vectors()
        held = HeldCommit(
            snapshot_version=None if self.snapshot is None else self.snapshot.version,
            table_id=(self._before or result).metadata.id,
            schema=(self._before or result).schema,
            result_schema=result.schema,
            reads=self._reads,
            staged=self._staged,
            provenance=self._provenance,
            marks=self._marks,
            written=(*map(decode_path, after), *vectors),
            txns=self._txns,
            skipped_txns=self._skipped_txns,
            read_version=self._read_version,
            isolation_level=self._isolation_level,
            taken_back=self._taken_back,
        )
        held.save(self.log.store, after)
        return replace(self._end(version, self._now_ms, 0, self._provenance.all_metrics), staged=held.reference)


class ResumedTransaction(Transaction):
    """The transaction that a `HeldTransaction` has kept, before its commit.

    Its commit looks for itself among those that came since: however often it is made, it is there once.

    Args:
        snapshot: The version it started from.
        is_alone: Prepare the commit as if nobody had committed since, and write nothing.
        if_unchanged: Every change of rows since is a conflict.
        look: Is shown each commit of others since; what it raises ends the transaction.
    """

    def __init__(
        self,
        log: TableLog,
        snapshot: Snapshot | None,
        held: HeldCommit,
        *,
        is_alone: bool = False,
        if_unchanged: bool = False,
        look: Callable[[Commit], None] | None = None,
    ) -> None:
        level = SERIALIZABLE if if_unchanged else held.isolation_level
        options: CommitOptions = {"isolation_level": level, "dry_run": is_alone}
        if not is_alone:
            options["read_version"] = held.read_version
        super().__init__(log, snapshot, operation=held.provenance.operation, **options)
        self._provenance = held.provenance
        self._reads, self._staged, self._marks = held.reads, held.staged, held.marks
        self._txns, self._skipped_txns = held.txns, held.skipped_txns
        self.take_back(held.taken_back)
        if if_unchanged:
            self.read_whole_table()
        self._look = look
        self._reads.is_checked = look is not None

    def _winners(self, version: int) -> Iterator[Commit]:
        for winner in super()._winners(version):
            is_own = (winner.commit_info or {}).get("txnId") == self._provenance.txn_id
            if self._look is not None and not is_own:
                self._look(winner)
            yield winner
