"""`df.write.format("delta_orch")` and `writeStream.format("delta_orch")`: planned and committed by the verbs of a
`DeltaTable`, between which Spark's tasks write the files.

A verb runs twice with an engine that writes nothing. The first run stops before files are written and returns the plan;
tasks write their files by it. The second run, from the same version of the table, takes their files for its own and
commits. Repeated or abandoned tasks leave files that no commit names.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from delta_orch.engines.base import Relation, WriteSpec
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.spark.in_tasks import files_of
from delta_orch.errors import InvalidRequestError, MetadataChangedError, TableNotFoundError, UnsupportedFeatureError
from delta_orch.expressions.clock import one_moment
from delta_orch.log.files.txn import TxnId
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.types import StructType, may_be_null
from delta_orch.spark_source.on_workers import BatchWriter, RowWriter, Written
from delta_orch.spark_source.options import WriteRequest
from delta_orch.table.column_mapping import ColumnMappingMode
from delta_orch.verbs.append import append
from delta_orch.verbs.overwrite import overwrite
from delta_orch.writing.target import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.space_curve import Curve
    from delta_orch.expressions.nodes import Column
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.write.commit_options import CommitResult


class _Planned(Exception):
    """How the rows of a write must become files."""

    def __init__(self, spec: WriteSpec) -> None:
        super().__init__("planned")
        self.spec = spec


class _TaskEngine(LocalEngine):
    """An engine whose rows are written elsewhere: `files` are those that the tasks wrote by `spec`, None before."""

    def __init__(self, schema: StructType, files: pa.Table | None = None, spec: WriteSpec | None = None) -> None:
        self.rows = LocalRelation(schema, lambda: iter(()))
        self._files = files
        self._spec = spec

    def relation(self, data: object) -> LocalRelation:
        return self.rows if data is self.rows else super().relation(data)

    def evaluated(self, relation: Relation, *, repeats: bool = False) -> AbstractContextManager[LocalRelation]:
        return nullcontext(self.rows) if relation is self.rows else super().evaluated(relation, repeats=repeats)

    def along_curve(
        self,
        relation: Relation,
        columns: Sequence[Column],
        curve: Curve,
        *,
        num_rows: int | None,
        num_files: int,
    ) -> LocalRelation:
        if relation is self.rows:
            return self.rows  # Their order is the tasks' affair.
        return super().along_curve(relation, columns, curve, num_rows=num_rows, num_files=num_files)

    def write(self, relation: Relation, spec: WriteSpec) -> pa.Table:
        if relation is not self.rows:
            return super().write(relation, spec)
        if self._spec is None:
            raise _Planned(spec)
        if replace(self._spec, store=spec.store) != spec:
            raise MetadataChangedError(
                "The table changed while its rows were written", remedy="Run the write again", differences=[]
            )
        return self._files


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """A write between its plan and its commit; can be pickled.

    Attributes:
        version: The version from which it starts; None if there is no table yet.
    """

    request: WriteRequest
    schema: StructType
    is_overwrite: bool
    version: int | None

    @classmethod
    def start(cls, request: WriteRequest, rows: StructType, is_overwrite: bool) -> PlannedWrite:
        """From the newest version of the table. Raises InvalidRequestError: The options do not fit the mode."""
        request.ensure_fits(is_overwrite)
        try:
            version = request.table().version()
        except TableNotFoundError:
            version = None
        # Spark derives NOT NULL from the query; the user did not ask for it.
        schema = may_be_null(rows)
        assert isinstance(schema, StructType)
        return cls(request, schema, is_overwrite, version)

    def spec(self) -> tuple[WriteSpec, datetime] | None:
        """How tasks write the rows, and the moment that all expressions tell. The commit plans the write again, maybe
        in another process: it takes both from here. None if the `txn` is recorded, so that nothing is left to do.

        Raises:
            UnsupportedFeatureError: Tasks cannot write such rows without each other, or the table cannot be planned
                twice alike.
            Otherwise as `DeltaTable.append` and `overwrite`. Nothing was written.
        """
        moment = datetime.now(UTC)
        try:
            self._run(_TaskEngine(self.schema), self.request.txn, moment)
        except _Planned as planned:
            self._ensure_tasks_can(planned.spec)
            return planned.spec, moment
        return None

    def commit(self, messages: Sequence[Written | None], batch_id: int | None = None) -> CommitResult | None:
        """Commit what the tasks wrote. Raises as the verb. The written files then remain without a commit."""
        done = [message for message in messages if message is not None]
        txn = self.request.txn if batch_id is None else self._txn_of_batch(done, batch_id)
        if any(message.spec is None for message in done):
            return None
        files = files_of((message.outcome, message.error) for message in done)
        specs = {message.spec for message in done if message.spec is not None}
        if len(specs) != 1:
            raise InvalidRequestError("Spark committed a write without any task", remedy="Run the write again")
        mode = None if batch_id is not None else next((m.overwrite_mode for m in done if m.overwrite_mode), None)
        spec, moment = pickle.loads(specs.pop())
        return self._run(_TaskEngine(self.schema, files, spec), txn, moment, mode)

    def _txn_of_batch(self, messages: Sequence[Written], batch_id: int) -> TxnId:
        app_id = self.request.app_id or next((m.query_id for m in messages if m.query_id), None)
        if app_id is None:
            raise InvalidRequestError(
                "Spark does not tell the id of the streaming query", remedy='Give it: .option("txnAppId", "…")'
            )
        return TxnId(app_id, batch_id)

    def _run(
        self, engine: _TaskEngine, txn: TxnId | None, moment: datetime, session_mode: str | None = None
    ) -> CommitResult:
        table, request = self.request.table(), self.request
        snapshot = None if self.version is None else cast("Snapshot", table.snapshot(self.version))
        options = cast(WriteOptions, {**request.definition, "user_metadata": request.user_metadata})
        if txn is not None:
            options["txn"] = txn
        if not self.is_overwrite:
            with one_moment(moment):
                return append(table.log, snapshot, engine.rows, request.schema_mode, engine, options)
        where, mode = request.replace_where, request.partition_overwrite_mode or "static"
        if self._is_left_to_session(snapshot):
            mode = (session_mode or mode).lower()
        with one_moment(moment):
            return overwrite(table.log, snapshot, engine.rows, where, mode, request.schema_mode, engine, options)

    def _is_left_to_session(self, snapshot: Snapshot | None) -> bool:
        """Whether `spark.sql.sources.partitionOverwriteMode` decides, as it does for Delta on Spark."""
        request = self.request
        is_open = request.partition_overwrite_mode is None and request.replace_where is None
        return is_open and not request.overwrite_schema and snapshot is not None and bool(snapshot.partition_columns)

    def _ensure_tasks_can(self, spec: WriteSpec) -> None:
        verb = "overwrite" if self.is_overwrite else "append"
        remedy = f"Use DeltaTable(…).{verb}(df, …)"
        if spec.identities:
            raise UnsupportedFeatureError(
                'The format "delta_orch" writes no identity columns',
                cause="Its tasks would have to share out the values of the column",
                remedy=remedy,
                features=["identityColumns"],
            )
        names = () if self.version is None else self.request.table().snapshot(self.version).schema.names
        if spec.column_mapping is not ColumnMappingMode.NONE and set(spec.schema.names) - set(names):
            raise UnsupportedFeatureError(
                'The format "delta_orch" adds no columns to a table with column mapping',
                cause="Their names in files are drawn at random, once for the plan and once for the commit",
                remedy=f"{remedy}, or add the columns first",
                features=["columnMapping"],
            )


def row_writer(request: WriteRequest, rows: StructType, is_overwrite: bool) -> RowWriter:
    """The writer of a batch write."""
    planned = PlannedWrite.start(request, rows, is_overwrite)
    return RowWriter(_pickled(planned.spec()), serialize_schema(planned.schema), pickle.dumps(planned))


def batch_writer(request: WriteRequest, rows: StructType, is_overwrite: bool) -> BatchWriter:
    """The writer of one batch of a stream. Spark asks for it anew before each batch and before each commit."""
    planned = PlannedWrite.start(request, rows, is_overwrite)
    return BatchWriter(_pickled(planned.spec()), serialize_schema(planned.schema), pickle.dumps(planned))


def _pickled(spec: tuple[WriteSpec, datetime] | None) -> bytes | None:
    return None if spec is None else pickle.dumps(spec)
