"""One step of a pipeline: what a task of an orchestrator does to its table, exactly once.

A plugin says who writes (`run_identity`), which rows are replaced (`Mode`) and how to get the new ones. The rules are
here: a step whose work is recorded is over before it computes anything, the commit carries the identifiers that make
sure of it, and the report says what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast
from typing import Literal as OneOf

from delta_orch.errors import AuditFailedError, ConflictError, InvalidRequestError, TableExistsError
from delta_orch.log.write.commit_options import CommitOptions
from delta_orch.pipeline.table_owner import INCREMENTAL, OPS, claim, ensure_may_write
from delta_orch.pipeline.target_table import first_upsert, fit_frame, may_follow, publish_now, snapshot_or_none
from delta_orch.protocol.table_properties import OWNER

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.files.txn import TxnId
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.pipeline.audit import Audit, AuditFinding
    from delta_orch.pipeline.incremental import ChangeBatch, IncrementalReader
    from delta_orch.pipeline.recorded import RecordedCommit
    from delta_orch.staged_write import StagedWrite
    from delta_orch.writing.target import WriteOptions

Look = Callable[["StagedWrite"], "Callable[[Commit], None] | None"]
Mode = OneOf["append", "merge", "scd2", "overwrite", "overwrite_partitions", "overwrite_touched", "error", "ignore"]
"""What becomes of the rows that are there.

- `append`: they stay.
- `merge`: those with the same `Step.merge_keys` as a new row are updated; new rows without such a row are inserted.
- `scd2`: they stay, and new versions of `Step.merge_keys` close them, in the order of `Step.sequence_by` (`scd2`).
- `overwrite`: those that `Step.where` selects are replaced, or all. New rows must satisfy `where`.
- `overwrite_partitions`: those in the partitions of the new rows are replaced.
- `overwrite_touched`: those in the partitions that a batch of changes touched are replaced (`Step.process` only).
- `error`, `ignore`: rows are added to an empty place; otherwise the step fails, or does nothing.
"""

ALREADY_COMMITTED = "this run has already committed this"
FENCED_OFF = "a newer run has already written this"
FOUND_DATA = "mode 'ignore' found data"
NOTHING_NEW = "nothing new in the source"


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did.

    Attributes:
        table: The table.
        version: The version it committed, or where it committed none the version it found; None without a table.
        skipped: It committed nothing.
        reason: Why it, or a part of it, was skipped.
        skipped_txns: The identifiers that were recorded already.
        commit: The last commit; None where the step was over before it computed anything.
        recovered: The commit of an earlier attempt of this very step, found again instead of made; `version` is its.
        batches: The batches of changes that an incremental step processed, in order.
        findings: What the audits found before the commit.
    """

    table: DeltaTable
    version: int | None
    skipped: bool
    reason: str | None = None
    skipped_txns: tuple[TxnId, ...] = ()
    commit: CommitResult | None = None
    batches: tuple[ChangeBatch, ...] = ()
    recovered: RecordedCommit | None = None
    findings: tuple[AuditFinding, ...] = ()

    @property
    def metrics(self) -> dict[str, int | str]:
        """`commitInfo.operationMetrics` of the last commit."""
        if self.recovered is not None:
            return dict(self.recovered.operation_metrics or {})
        return {} if self.commit is None else dict(self.commit.operation_metrics)

    def snapshot(self) -> TableSnapshot:
        """The table as the step left it: the version it committed, else the newest.

        Raises:
            TableNotFoundError: There is no table.
        """
        newest = self.table.snapshot()
        # Others may have committed since.
        is_newest = self.version is None or newest.version == self.version or (self.skipped and self.recovered is None)
        return newest if is_newest else self.table.snapshot(version=self.version)


@dataclass(frozen=True, slots=True)
class Step:
    """A write of one task to one table. It is one commit, made once for its `txns`; `process` makes one a batch.

    Attributes:
        name: Who writes, for error messages.
        table: The table, which need not exist yet.
        mode: See `Mode`.
        txns: Who writes, for the table. A step with none always writes.
        where: Selects rows: `overwrite` replaces them, `error` and `ignore` look for them. None selects all.
        creates_only: `error` and `ignore` look for a table instead of rows.
        within: Where every new row must lie: predicates of which no two are true for a row. `merge` moves no row from
            one to another. None at all allows every place. `overwrite` has `where`.
        merge_keys: The columns that identify a row, for `merge` and `scd2`.
        sequence_by: The column that orders the versions of `scd2`.
        delete_marker: A boolean column of the rows that ends keys of `scd2`; see `scd2.Deletes`.
        full_snapshot: What is missing from the rows ends in `scd2`.
        schema_mode: As for `DeltaTable.append` and `DeltaTable.overwrite`.
        engine: As for `DeltaTable.append`.
        options: What a table is to be that the step creates, and what its commits say. No `txn`. With `stage` the step
            ends with a staged write (`StepReport.commit.staged`), for others to publish.
        audits: What must hold before the commit. The rows are staged, looked at, and published or not.
        look: Is shown what was staged, before it is published; what it raises refuses it. What others commit after it
            has looked, and which the write would replace, is a conflict. What it returns is shown the others.
        consumers: Of an incremental step, the names of its cursors (`run_identity.cdc_prefix`).
        owner: Who writes, for `table_owner`: a step with one replaces no rows of a table that belongs to another,
            and none that `shared_target` spares. `process` sets it.
        look_at_partitions: The `look` of `verbs.overwrite`.
    """

    name: str
    table: DeltaTable
    mode: Mode = "append"
    txns: tuple[TxnId, ...] = ()
    where: str | Expression | None = None
    creates_only: bool = False
    within: tuple[Expression, ...] = ()
    merge_keys: tuple[str, ...] = ()
    sequence_by: str | None = None
    delete_marker: str | None = None
    full_snapshot: bool = False
    schema_mode: str | None = None
    engine: EngineChoice = "auto"
    options: WriteOptions = field(default_factory=dict)  # type: ignore[assignment]  # an empty one
    audits: tuple[Audit, ...] = ()
    look: Look | None = None
    consumers: tuple[str, ...] = ()
    owner: str | None = None
    look_at_partitions: Callable[..., None] | None = None

    def run(self, rows: Callable[[], object]) -> StepReport:
        """Get the rows and commit them. Do neither where the work is recorded, or `error` or `ignore` found data.

        Args:
            rows: Gives what `DeltaTable.append` takes. None is an error, because it is likely a missing `return`.

        Raises:
            TableExistsError: Mode `error` found data.
            AuditFailedError: An audit did not pass. The table is as before; the staged write waits to be looked at.
            InvalidRequestError: `rows` gave None, the request does not fit the table, or the table belongs to another
                step (`table_owner`).
            DeltaError: As `DeltaTable.append` and `DeltaTable.overwrite`. The table is unchanged after every error;
                where there was none, there is none.
        """
        done = self.already_done()
        if done is not None:
            return done
        before = snapshot_or_none(self.table)
        self._ensure_owner(before)
        if self.mode == "overwrite_partitions":
            self._replaced_partitions(before)
        return self._commit(rows())

    def already_done(self) -> StepReport | None:
        """The report of a step that has nothing to compute: its work is recorded, or its mode finds data. None where
        there is something to do.

        Raises:
            TableExistsError: Mode `error` found data.
        """
        before = snapshot_or_none(self.table)
        return None if before is None else self._found_done(before)

    def process(
        self, reader: IncrementalReader, rows: Callable[[ChangeBatch], object], *, until_current: bool = False
    ) -> StepReport:
        """Commit what `rows` makes of the next batch of changes, together with the cursor.

        Args:
            reader: Reads for this step's table.
            rows: Gives the rows of a batch; an empty result moves the cursor alone.
            until_current: Go on until everything that was in the source at the start is processed.

        Raises:
            InvalidRequestError: `rows` gave None, or `overwrite_touched` has a source without partitions.
            DeltaError: As `IncrementalReader.next_batch` and `run`. Batches committed before the error stay.
        """
        return self.process_all({"": reader}, lambda batches: rows(batches[""]), until_current=until_current)

    def recover(self, txn: TxnId) -> StepReport:
        """The report of a step whose commit, with this identifier, an earlier attempt has made.

        Raises:
            DeltaError: The log cannot be read.
        """
        from delta_orch.pipeline.recorded import find_txn_commit

        found = find_txn_commit(self.table, txn.app_id, txn.version)
        return StepReport(self.table, found.version, True, ALREADY_COMMITTED, (txn,), recovered=found)

    def process_all(
        self,
        readers: Mapping[str, IncrementalReader],
        rows: Callable[[Mapping[str, ChangeBatch]], object],
        *,
        until_current: bool = False,
    ) -> StepReport:
        """Commit what `rows` makes of the next batch of each source that has news, together with all their cursors.

        Args:
            readers: Name → reader for this step's table, each with a consumer name of its own.
            rows: Gives the rows of the batches, at least one, by the names of their readers. It gets one of each
                source, also of those without news, where rows of all of them are replaced (`_read_together`).
            until_current: As `process`, for each source.

        Raises:
            InvalidRequestError: As `process`; `overwrite_touched` has several sources.
            DeltaError: As `process`. The cursors have moved together, by the batches committed before.
        """
        if self.mode == "overwrite_touched" and len(readers) > 1:
            raise InvalidRequestError(
                f"{self.name} replaces the touched partitions, which are those of one source",
                remedy="Merge, or overwrite the partitions of the rows",
            )
        from delta_orch.pipeline.shared_target import ensure_touched

        goals: Mapping[str, int] = {}
        asked = {"appends": self.mode == "append", "is_whole": self._is_whole}
        reports: list[StepReport] = []
        done: list[ChangeBatch] = []
        while batches := {
            name: batch for name, reader in readers.items() if (batch := reader.next_batch(**asked)) is not None
        }:
            goals = goals or {name: reader.source.version() for name, reader in readers.items() if until_current}
            steps = [self._for_batch(batch, readers.values()) for batch in batches.values()]
            step = replace(steps[0], txns=tuple(txn for one in steps for txn in one.txns))
            if self.mode == "overwrite_partitions" and any(batch.is_recreated for batch in batches.values()):
                # Partitions that the new source does not have came from the old one.
                step = replace(step, mode="overwrite")
            step._ensure_owner(snapshot_or_none(self.table))
            given = {name: self.guarded(batch) for name, batch in self._read_together(readers, batches).items()}
            look = partial(ensure_touched, self.name, given.values(), batches.values())
            reports.append(replace(step, look_at_partitions=look)._commit(rows(given)))
            done += batches.values()
            if not any(batch.ending_version < goals.get(name, -1) for name, batch in batches.items()):
                break
        if not reports:
            return StepReport(self.table, self.table.version() if self.table.exists() else None, True, NOTHING_NEW)
        return replace(reports[-1], skipped=all(report.skipped for report in reports), batches=tuple(done))

    def _read_together(
        self, readers: Mapping[str, IncrementalReader], batches: Mapping[str, ChangeBatch]
    ) -> Mapping[str, ChangeBatch]:
        """What the function of a step is handed. Where it replaces rows of all sources, it reads all of them."""
        if len(readers) == 1 or not (self._is_whole or self.mode == "overwrite_partitions"):
            return batches
        every = {name: batches.get(name) or reader.quiet_batch() for name, reader in readers.items()}
        if self.mode != "overwrite_partitions":
            return every
        touched = tuple(batch.partition_predicate() for batch in batches.values())
        return {name: replace(batch, touched=touched) for name, batch in every.items()}

    def guarded(self, batch: ChangeBatch) -> ChangeBatch:
        """The batch, which offers only what is exact for this step's mode."""
        if self.mode == "append":
            return replace(batch, is_appended=True)
        if self._is_whole:
            return replace(batch, is_whole=True)
        if self.mode != "overwrite_partitions":
            return replace(batch, recomputes=self.mode == "overwrite_touched")
        return replace(batch, replaces=(*batch.replaces, self._replaced_partitions(snapshot_or_none(self.table))))

    def _replaced_partitions(self, before: TableSnapshot | None) -> tuple[str, ...]:
        """The columns of the partitions that `overwrite_partitions` replaces. Raises InvalidRequestError: None."""
        columns = (self.options.get("partition_by") or ()) if before is None else before.partition_columns
        if not columns:
            raise InvalidRequestError(
                f"{self.name} replaces the partitions that its rows lie in, and the table has no partitions",
                remedy="Give a new table partition_by; or append, merge, or overwrite all rows",
            )
        return tuple(columns)

    def _found_done(self, before: TableSnapshot) -> StepReport | None:
        """The report of a step that has nothing to compute. The commit looks at the identifiers once more."""
        known = ((txn, before.txn_version(txn.app_id)) for txn in self.txns)
        stale = [txn for txn, version in known if version is not None and txn.is_recorded_by(version)]
        # One that guards the whole write decides alone; those with a scope only where none of them is left.
        if self.txns and (len(stale) == len(self.txns) or any(txn.scope is None for txn in stale)):
            return StepReport(self.table, before.version, True, _why_skipped(stale, before), tuple(stale))
        if self.mode not in ("error", "ignore") or not self._is_in_the_way(before):
            return None
        if self.mode == "ignore":
            return StepReport(self.table, before.version, True, FOUND_DATA)
        raise TableExistsError(
            f"{self.name} found {'a table' if self.creates_only else 'data'} at {self.table.uri}",
            cause="Mode 'error' writes only where there is nothing yet",
            remedy="Use mode 'overwrite' to replace it, 'ignore' to keep it, or 'append'",
            uri=self.table.uri,
        )

    def _is_in_the_way(self, before: TableSnapshot) -> bool:
        from delta_orch.expressions.resolve import resolve_expression
        from delta_orch.pipeline.partitions import looks_only_at

        if self.creates_only:
            return True
        if self.where is None or isinstance(self.where, str):
            return before.num_files > 0
        where = resolve_expression(self.where, before.schema)
        if looks_only_at(where, before.partition_columns):
            return bool(before.files(["path"], where).num_rows)
        # Statistics can tell that a file holds no such row, but not that it holds one.
        return any(batch.num_rows for batch in before.scan([before.schema.names[0]], where).to_reader())

    def _for_batch(self, batch: ChangeBatch, readers: Iterable[IncrementalReader]) -> Step:
        from delta_orch.pipeline.run_identity import cdc_prefix

        where = None
        # All that is there came from the table that was there before the source was recreated.
        if self.mode == "overwrite_touched" and not batch.is_recreated:
            where = batch.partition_predicate()
            if where is None and self.table.exists():
                raise InvalidRequestError(
                    f"{self.name} replaces the touched partitions, which needs a partitioned source",
                    remedy="Append, or overwrite all",
                    source=batch.source.uri,
                )
        read = {"sourceTable": batch.source.uri, "sourceEndingVersion": batch.ending_version}
        if batch.starting_version is not None:
            read["sourceStartingVersion"] = batch.starting_version
        options: WriteOptions = {**self.options, "commit_info": {**(self.options.get("commit_info") or {}), **read}}
        consumers = tuple(cdc_prefix(reader.consumer) for reader in readers)
        return replace(self, txns=(batch.txn,), where=where, options=options, consumers=consumers, owner=INCREMENTAL)

    @property
    def _is_whole(self) -> bool:
        return self.mode == "overwrite" or self.full_snapshot

    @property
    def _replaces(self) -> bool:
        return self.mode.startswith("overwrite")

    def _ensure_owner(self, before: TableSnapshot | None) -> None:
        if self.owner is not None and before is not None:
            ensure_may_write(self.table, before, self.owner, replaces=self._replaces)

    def _options(self, before: TableSnapshot | None) -> WriteOptions:
        """What the commit says, and what a table is to be that it creates."""
        options: WriteOptions = {**self.options, "txn": self.txns}
        if self.audits or self.full_snapshot or self.look is not None:
            options["stage"] = True
        if before is None and self.owner is not None and (self._replaces or self.owner == OPS):
            options["properties"] = {**(options.get("properties") or {}), OWNER: self.owner}
        return options

    def _commit(self, data: object) -> StepReport:
        if data is None:
            raise InvalidRequestError(
                f"{self.name} returned None instead of rows",
                cause="A missing return statement must not pass for an empty result",
                remedy="Return a Spark DataFrame, an Arrow table or reader, or a pandas or Polars frame (empty where "
                "there are no rows)",
            )
        table = self.table
        before = snapshot_or_none(table)
        if before is not None and self.mode in ("error", "ignore") and (done := self._found_done(before)) is not None:
            # Another writer was faster than whoever computed the rows.
            return done
        known = None if before is None or self.schema_mode == "overwrite" else before.schema
        data = fit_frame(data, known, merges=self.schema_mode == "merge", hands_on=self.owner == OPS)
        findings: tuple[AuditFinding, ...] = ()
        try:
            result = self._write(data, before)
            if result.staged is not None:
                result, findings = self._publish(result, self.table.staged(result.staged))
        except ConflictError:
            if before is not None or not may_follow(table, data):
                raise
            # Another writer has created the table meanwhile.
            return self._commit(data)
        repeated = result.skipped_txns
        reason = _why_skipped(repeated, table.snapshot()) if repeated else None
        version = None if result.staged else result.version
        if self.owner is not None and self._replaces and before is not None and version is not None:
            claim(table, before, self.owner, self.options.get("properties") or {})
        return StepReport(table, version, result.skipped, reason, repeated, result, findings=findings)

    def _write(self, data: object, before: TableSnapshot | None) -> CommitResult:
        options, log = self._options(before), self.table.log
        creates = before is None and self.mode in ("error", "ignore")
        if self.mode in ("append", "error", "ignore") and not creates:
            from delta_orch.verbs.append import append

            return append(log, before, data, self.schema_mode, self.engine, options, self._bounds)
        if self.mode == "scd2":
            from delta_orch.pipeline.scd2 import Deletes, apply_scd2

            assert self.sequence_by is not None
            deletes = Deletes(self.delete_marker, self.full_snapshot, self.within)
            return apply_scd2(log, before, data, self.merge_keys, self.sequence_by, self.engine, options, deletes)
        from delta_orch.pipeline.shared_target import other_steps
        from delta_orch.verbs.overwrite import overwrite

        if self.mode == "merge":
            return self._upsert(data, before, options)
        self._ensure_owner(before)
        if self.owner is not None and before is not None and other_steps(before, self.consumers):
            options["stage"] = True
        dynamic = "dynamic" if self.mode == "overwrite_partitions" else "static"
        where = self._bounds if creates else self.where
        # From this very version, or where there is no table: what others commit from here on is a conflict.
        return overwrite(
            log, before, data, where, dynamic, self.schema_mode, self.engine, options, self.look_at_partitions
        )

    def _publish(self, result: CommitResult, staged: StagedWrite) -> tuple[CommitResult, tuple[AuditFinding, ...]]:
        """Look at what was staged, and publish it."""
        look_behind = None if self.look is None else self.look(staged)
        if self.owner is not None and self._replaces:
            from delta_orch.pipeline.shared_target import ensure_others_keep_theirs

            ensure_others_keep_theirs(self.table, staged, self.consumers)
        findings = self._audit(staged) if self.audits else ()
        if self.options.get("stage"):
            return result, findings
        # What holds for the whole table must hold beside the commits of others, too. A snapshot ends the keys that it
        # does not have, whoever has added them.
        is_of_table = self.full_snapshot or any(
            a.unique or a.look or (a.min_rows is not None and self._only is None) for a in self.audits
        )
        published = publish_now(staged, if_unchanged=is_of_table, look=look_behind)
        return replace(published, measured=result.measured), findings

    @property
    def _only(self) -> str | Expression | None:
        """Which rows the audits are about; None for all."""
        return self._bounds if self.where is None else self.where

    def _audit(self, staged: StagedWrite) -> tuple[AuditFinding, ...]:
        from delta_orch.expressions.resolve import resolve_predicate

        snapshot = staged.snapshot()
        only = self._only
        resolved = None if only is None else resolve_predicate(only, snapshot.schema)
        findings = tuple(audit.find(snapshot, resolved) for audit in self.audits)
        failed = [finding for finding in findings if not finding.passed]
        if failed:
            raise AuditFailedError(
                f"{self.name} did not pass {', '.join(finding.name for finding in failed)}",
                cause=" ".join(finding.description for finding in failed if finding.description) or None,
                remedy=f"Nothing was committed. DeltaTable({self.table.uri!r}).staged({staged.reference!r}).snapshot() "
                "has the rows until vacuum deletes them; correct them and run the step again",
                staged=staged.reference,
                table_uri=self.table.uri,
                findings=findings,
            )
        return findings

    @property
    def _bounds(self) -> Expression | None:
        """`within` as one predicate."""
        from delta_orch.expressions.tree import any_of

        return any_of(self.within) if self.within else None

    def _upsert(self, data: object, before: TableSnapshot | None, options: WriteOptions) -> CommitResult:
        if before is None:
            return first_upsert(self.table, data, self.merge_keys, self._bounds, self.engine, options)
        from delta_orch.verbs.merge.upsert import upsert
        from delta_orch.writing.target import existing_target

        existing_target(before, options.get("partition_by"))
        about = {name: value for name, value in options.items() if name in CommitOptions.__annotations__}
        return upsert(
            self.table.log,
            before,
            data,
            self.merge_keys,
            self.engine,
            self.schema_mode,
            cast(CommitOptions, about),
            self.within,
            lossless=True,
        )


def _why_skipped(txns: Sequence[TxnId], recorded_in: TableSnapshot) -> str:
    recorded = ((recorded_in.txn_version(txn.app_id), txn.version) for txn in txns)
    return FENCED_OFF if any(known is not None and known > own for known, own in recorded) else ALREADY_COMMITTED
