"""`ingest`: loads the new files of a source, each exactly once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.arrival.file_look import FileLook, NewFiles, columns_from_files, quarantined_before, replaced_rows
from delta_orch.arrival.file_source import FileSource
from delta_orch.arrival.read_files import SET_ASIDE_SCHEMA, read_files
from delta_orch.engines.base import Engine
from delta_orch.engines.select import EngineChoice, select_engine
from delta_orch.errors import ConflictError, InvalidRequestError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitResult
from delta_orch.log.write.staging import write_metrics
from delta_orch.table.schema_evolution import SchemaMode
from delta_orch.verbs.expect import CheckedRows, ExpectationReport, Expectations, checked_rows
from delta_orch.verbs.overwrite import replace_rows
from delta_orch.verbs.quarantine import complete_transfers, write_transfer
from delta_orch.writing.plan import Source, Write, WritePlan, run_plan
from delta_orch.writing.target import WriteOptions

if TYPE_CHECKING:
    from delta_orch.arrival.read_files import FileRows

_LOGGER = logging.getLogger(__name__)
_MOST_LOSSES = 20
_PER_COMMIT = ("txn", "read_version", "stage", "dry_run")


@dataclass(frozen=True)
class IngestResult:
    """The result of an ingest.

    Attributes:
        version: The newest version of the table. None if there is no table.
        commits: The versions that the ingest committed, in order.
        num_files: The number of files whose rows were loaded.
        size_bytes: The total size of these files.
        num_rows: The number of added rows.
        set_aside: Files that could not be read (`on_error='quarantine'`), with the string columns `path` (below the
            source) and `error`. A file is read again after it changes.
        expected: The results of the rules (`expect`). It has no results if there are no rules.
    """

    version: int | None
    commits: tuple[int, ...] = ()
    num_files: int = 0
    size_bytes: int = 0
    num_rows: int = 0
    set_aside: pa.Table = field(default_factory=SET_ASIDE_SCHEMA.empty_table, repr=False)
    expected: ExpectationReport = field(default_factory=ExpectationReport)

    def after(
        self, batch: NewFiles, commit: CommitResult, set_aside: pa.Table, expected: ExpectationReport
    ) -> IngestResult:
        """Return the result with one more commit."""
        return IngestResult(
            commit.version,
            (*self.commits, commit.version),
            self.num_files + batch.files.num_rows - set_aside.num_rows,
            self.size_bytes + batch.size_bytes,
            self.num_rows + (0 if commit.effect is None else commit.effect.rows_added or 0),
            pa.concat_tables([self.set_aside, set_aside]),
            self.expected + expected,
        )


def ingest(
    log: TableLog,
    advance: Callable[[], Snapshot | None],
    source: FileSource,
    engine: EngineChoice,
    max_commits: int | None,
    expect: Mapping[str, object] | None,
    open_quarantine: Callable[[str | None], TableLog],
    options: WriteOptions,
) -> IngestResult:
    """Load the new files, in commits of at most `max_files` and `max_bytes`. See `DeltaTable.ingest`.

    The commit of the rows also records the loaded files (`arrival.loaded_files`). If two loaders have the same files,
    one of them commits. The other lists the files again and loads the rest.

    Args:
        advance: Returns the newest version of the table. None if there is no table.
        max_commits: The maximal number of commits. None loads all listed files.
        open_quarantine: Opens the log of a quarantine by its location. None means the quarantine beside the table.
    """
    if refused := [name for name in _PER_COMMIT if options.get(name)]:
        raise InvalidRequestError(
            f"ingest does not accept {refused[0]}",
            cause="An ingest makes several commits, each with its own record of loaded files",
            remedy="Leave the argument out. Each file is loaded once, however often ingest runs",
        )
    if max_commits is not None and max_commits < 1:
        raise InvalidRequestError(f"max_commits={max_commits} is below 1", remedy="Pass at least 1, or None")
    rules = Expectations.of(expect)
    waiting = open_quarantine(None) if rules is not None and rules.quarantines else None
    look, reader, snapshot, losses = FileLook(source, log), select_engine(None, engine), advance(), 0
    result = IngestResult(None if snapshot is None else snapshot.version)
    while max_commits is None or len(result.commits) < max_commits:
        batch = look.next_files(snapshot)
        if batch is None:
            break
        rows = read_files(source, batch.files, columns_from_files(snapshot), engine=reader)
        lost: ConflictError | None = None
        try:
            commit, expected = _load(log, snapshot, batch, rows, reader, rules, waiting, options)
        except ConflictError as e:
            lost = e
        if lost is None and not commit.skipped:
            losses, result = 0, result.after(batch, commit, rows.set_aside, expected)
            _tell(result, source, rows.set_aside, expected)
        else:
            _LOGGER.info("Another commit to %s came first. The new files are listed again", log.store.uri)
            losses += 1
            if losses == _MOST_LOSSES and lost is not None:
                raise lost
        snapshot = advance()
        if waiting is not None:
            complete_transfers(log, advance, [waiting], open_quarantine)
    if waiting is not None and not result.commits:
        complete_transfers(log, advance, [waiting], open_quarantine)
    return result


@contextmanager
def _checked(
    data: object, snapshot: Snapshot | None, rules: Expectations | None, engine: Engine
) -> Iterator[CheckedRows | None]:
    if rules is None:
        yield None
        return
    schema = None if snapshot is None else snapshot.schema
    with checked_rows(engine, Source(data).open(engine, schema), rules, {}) as checked:
        yield checked


def _load(
    log: TableLog,
    snapshot: Snapshot | None,
    batch: NewFiles,
    rows: FileRows,
    engine: Engine,
    rules: Expectations | None,
    waiting: TableLog | None,
    options: WriteOptions,
) -> tuple[CommitResult, ExpectationReport]:
    where, data = None, rows.batches
    if batch.replaces:
        if batch.source.on_error == "quarantine" and isinstance(data, pa.RecordBatchReader):
            data = data.read_all()  # All rows are read first, because the old rows of an unreadable file must stay.
        where = replaced_rows(batch, rows.set_aside)

    def change(write: Write) -> dict[str, int]:
        metrics = write_metrics(write.insert()) if where is None else replace_rows(write, where)
        batch.write_record(rows.set_aside)
        if waiting is not None and checked is not None and checked.ended() is not None:
            gone = quarantined_before(batch, rows.set_aside) if batch.replaces else None
            version = None if snapshot is None else snapshot.version
            bad = checked.quarantined(None)
            write_transfer(log.store, write.transaction.txn_id, version, waiting.store.address, bad, where=gone)
        return metrics

    mode = SchemaMode.MERGE if batch.source.schema_mode != "fail" and snapshot is not None else None
    parameters = {"mode": "Append" if where is None else "Overwrite", "source": str(batch.source.uri)}
    with _checked(data, snapshot, rules, engine) as checked:
        own: WriteOptions = {**options, "txn": batch.txn}
        if checked is not None:
            data, own["operation_metrics"] = checked.kept, partial(_metrics, options, checked)
        source, is_blind = Source(data, mode), where is None
        plan = WritePlan("WRITE", parameters, change, own, source, engine, is_blind=is_blind)
        result = run_plan(log, snapshot, plan)
        # If another loader committed first, the rows were not read and there is no report.
        report = None if checked is None else checked.ended()
    return result, report or ExpectationReport()


def _metrics(options: WriteOptions, checked: CheckedRows) -> dict[str, int | str]:
    given = options.get("operation_metrics") or {}
    return {**(given() if callable(given) else given), **checked.metrics()}


def _tell(result: IngestResult, source: FileSource, set_aside: pa.Table, expected: ExpectationReport) -> None:
    _LOGGER.info(
        "Version %d: %d files, %d bytes and %d rows of %s are loaded so far",
        result.commits[-1],
        result.num_files,
        result.size_bytes,
        result.num_rows,
        source.uri,
    )
    for rule in expected.results:
        if rule.num_broken:
            _LOGGER.warning("%d rows break the rule %r (%s)", rule.num_broken, rule.name, rule.action)
    for file in set_aside.slice(0, 5).to_pylist():
        _LOGGER.warning("%s/%s is set aside: %s", source.uri, file["path"], file["error"])
