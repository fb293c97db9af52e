"""`clone`: a version of a table as a table of its own. Its files stay where they are (shallow) or are copied (deep)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.file_traits import with_record_counts
from delta_orch.errors import InvalidRequestError, TableExistsError, TableNotFoundError
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_checks import ensure_files_fit_iceberg
from delta_orch.log.write.commit_options import SERIALIZABLE, CommitOptions, CommitResult, parse_txns
from delta_orch.log.write.staged_actions import keys_of
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.actions import Metadata
from delta_orch.protocol.arrow_building import all_booleans
from delta_orch.protocol.table_properties import OWNER, ensure_settable, property_texts
from delta_orch.storage.external_paths import is_one_table
from delta_orch.table.clustering import CLUSTERING_DOMAIN, serialize_clustering
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.protocol_upgrade import PROTECTED_BEFORE, is_protocol_request, requested_features
from delta_orch.table.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN
from delta_orch.table.table_rules import settle
from delta_orch.verbs.carried_metadata import united_protocol, with_own_commit_times
from delta_orch.verbs.cloned_files import copied_files, referred_files
from delta_orch.verbs.restore import ensure_files_there
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS
from delta_orch.writing.target import ensure_alone

_MAPPING_MODE = "delta.columnMapping.mode"
# The first two name columns in the source's files: the clone gives its rows ids of its own. Who replaces the source's
# rows does not replace those of the clone.
_NOT_TAKEN = (ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN, PROTECTED_BEFORE, OWNER)


def clone(
    source: Snapshot,
    target: TableLog,
    *,
    is_newest: bool,
    shallow: bool,
    replace_target: bool,
    properties: Mapping[str, str] | None,
    options: CommitOptions,
) -> CommitResult:
    """Commit the files of a version as the state of another table: rows, schema, partitioning, properties, clustering,
    column mapping, deletion vectors. Rows get row ids of their own where the clone tracks rows; transaction ids and the
    user's metadata domains are not taken over.

    A shallow clone names the source's files by absolute paths and copies nothing. Whatever vacuum deletes of the source
    is missing from it; vacuum of the clone deletes no file of the source. A deep clone copies every file in parallel,
    in pieces of bounded size, and stands alone.

    Args:
        source: The version.
        is_newest: Whether it is the source's newest. The files of an older one are looked up first.
        replace_target: A table that is there becomes the clone, in one commit: files it has already stay, others are
            removed. Its protocol keeps its features.

    Raises as `DeltaTable.clone`.
    """
    if any(txn.scope is not None for txn in parse_txns(options.get("txn"))):
        raise InvalidRequestError("A clone copies the whole table", remedy="Pass transaction ids without scope")
    if is_one_table(target.store.uri, source.store.uri):
        raise InvalidRequestError(
            "A table cannot be cloned onto itself", remedy="To go back to an older version, use restore"
        )
    overrides = ensure_settable(property_texts(properties or {}), on_new_table=False)
    before = _snapshot_or_none(target, options.get("read_version"))
    # Whatever is asked for: of two clones that create one table, only one may add its files.
    level = SERIALIZABLE if before is None else options.get("isolation_level") or SERIALIZABLE
    options = {**options, "isolation_level": level}
    transaction = Transaction(
        target,
        before,
        operation="CLONE",
        operation_parameters={"source": f"delta.`{source.store.uri}`", "sourceVersion": source.version},
        **options,
    )
    if transaction.stale_txns():
        return transaction.commit()
    transaction.ensure_follows()
    if before is not None and not replace_target:
        raise TableExistsError(
            f"A table exists at {target.store.uri}",
            remedy="Clone to another location, or pass replace=True",
            uri=target.store.uri,
        )
    table = _cloned(source, before, overrides)
    ensure_files_fit_iceberg(source, table)
    if before is None:
        ensure_alone(target.store, may_nest=table.properties.allow_nested_tables)
    files = source.files()
    if not is_newest:
        ensure_files_there(source, files, "cloned", "Clone a newer version")
    files = with_record_counts(source.store, files, table)
    if shallow:
        adds = referred_files(source.store, target.store, files)
    else:
        adds = copied_files(source.store, target.store, files, is_rehearsal=options.get("dry_run", False))
    removes = _stage(transaction, source, before, table, _as_new(adds), just_written=not shallow)
    transaction.set_operation_metrics(
        {
            "sourceTableSize": source.size_bytes,
            "sourceNumOfFiles": source.num_files,
            "numRemovedFiles": removes.num_rows,
            "numCopiedFiles": 0 if shallow else adds.num_rows,
            "removedFilesSize": FileTable(removes).size_bytes,
            "copiedFilesSize": 0 if shallow else FileTable(adds).size_bytes,
        }
    )
    return transaction.commit()


def _snapshot_or_none(log: TableLog, version: int | None) -> Snapshot | None:
    try:
        return log.snapshot(version)
    except TableNotFoundError:
        return None


def _cloned(source: Snapshot, before: Snapshot | None, overrides: Mapping[str, str]) -> TableConfiguration:
    """Protocol and metadata of the clone."""
    taken = source.configuration.for_writing()
    own = None if before is None else before.configuration.for_writing()
    properties = {key: value for key, value in taken.configuration.items() if key not in _NOT_TAKEN}
    if own is not None and OWNER in own.configuration:
        properties[OWNER] = own.configuration[OWNER]
    wanted = taken.with_properties(properties)
    asked = {**properties, **{key: value for key, value in overrides.items() if not is_protocol_request(key)}}
    features = requested_features(overrides)
    if asked.get(_MAPPING_MODE, "none") != properties.get(_MAPPING_MODE, "none"):
        raise InvalidRequestError(
            f"{_MAPPING_MODE} cannot change in a clone",
            cause="The files know their columns as the source does",
            remedy="Clone first, then alter the clone",
            property=_MAPPING_MODE,
        )
    settled = settle(wanted, wanted.with_properties(asked), features)
    protocol = settled.protocol if own is None else united_protocol(own.protocol, settled.protocol)
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=settled.metadata.schema_string,
        partition_columns=settled.metadata.partition_columns,
        configuration=with_own_commit_times(settled.configuration, taken, own),
        name=(taken if own is None else own).metadata.name,
        description=(taken if own is None else own).metadata.description,
        created_time=time.time_ns() // 1_000_000,
    )
    return TableConfiguration(protocol, metadata)


def _as_new(files: pa.Table) -> pa.Table:
    """Files as they are added to a table that gives their rows ids of its own."""
    columns = {
        "data_change": all_booleans(True, files.num_rows),
        "base_row_id": pa.nulls(files.num_rows, pa.int64()),
        "default_row_commit_version": pa.nulls(files.num_rows, pa.int64()),
    }
    arrays = [columns[name] if name in columns else files.column(name) for name in ADD_SCHEMA.names]
    return pa.Table.from_arrays(arrays, schema=ADD_SCHEMA)


def _stage(
    transaction: Transaction,
    source: Snapshot,
    before: Snapshot | None,
    table: TableConfiguration,
    adds: pa.Table,
    *,
    just_written: bool,
) -> pa.Table:
    """Returns: The files that leave the target."""
    # Whoever creates the table meanwhile may put rows into it that are not the source's.
    transaction.read_whole_table()
    transaction.update_metadata(table.metadata)
    if before is None or table.protocol != before.protocol:
        transaction.update_protocol(table.protocol)
    clustering, known = source.clustering or (), () if before is None else before.clustering or ()
    if clustering != known:
        transaction.set_domain_metadata(CLUSTERING_DOMAIN, serialize_clustering(clustering))
    removes = adds.slice(0, 0).select(REMOVED_FILE_COLUMNS)
    if before is not None:
        live = before.files(REMOVED_FILE_COLUMNS)
        keys, known_keys = keys_of(adds), keys_of(live)
        removes = pc.filter(live, pc.invert(pc.is_in(known_keys, value_set=keys)))
        adds = pc.filter(adds, pc.invert(pc.is_in(keys, value_set=known_keys)))
    if adds.num_rows:
        transaction.add_files(adds, just_written=just_written)
    if removes.num_rows:
        transaction.remove_files(removes)
    return removes
