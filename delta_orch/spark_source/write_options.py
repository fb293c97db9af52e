"""The options of `df.write.format("delta_orch")` and of a streaming sink, under the names of Delta on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import TxnId
from delta_orch.spark_source.options import by_known_names, parse_boolean, parse_integer, parse_names, storage_options

_NAMES = (
    "path",
    "replaceWhere",
    "partitionOverwriteMode",
    "mergeSchema",
    "overwriteSchema",
    "txnAppId",
    "txnVersion",
    "userMetadata",
    "partitionBy",
    "storageOptions",
)
_STREAM_NAMES = (*_NAMES, "checkpointLocation", "queryName")
"""The last two are Spark's own; they come along."""
_PROPERTY = "delta."


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """What to write, and how. `definition` describes a table that does not exist yet."""

    path: str
    storage_options: Mapping[str, str]
    replace_where: str | None = None
    partition_overwrite_mode: str | None = None
    merge_schema: bool = False
    overwrite_schema: bool = False
    app_id: str | None = None
    txn_version: int | None = None
    user_metadata: str | None = None
    definition: Mapping[str, object] = field(default_factory=dict)

    def table(self) -> DeltaTable:
        return DeltaTable(self.path, self.storage_options)

    @property
    def schema_mode(self) -> str | None:
        return "overwrite" if self.overwrite_schema else "merge" if self.merge_schema else None

    @property
    def txn(self) -> TxnId | None:
        """The key of a batch write."""
        if self.app_id is None or self.txn_version is None:
            return None
        return TxnId(self.app_id, self.txn_version)

    def ensure_fits(self, is_overwrite: bool) -> None:
        """Raises InvalidRequestError: An option of an overwrite is given, and the write appends."""
        dynamic = self.partition_overwrite_mode == "dynamic"
        if not is_overwrite and (self.replace_where is not None or dynamic or self.overwrite_schema):
            raise InvalidRequestError(
                "The options replaceWhere, partitionOverwriteMode and overwriteSchema are those of an overwrite",
                remedy='Use .mode("overwrite"), or leave them out',
            )


def parse_write_options(options: Mapping[str, str], *, is_stream: bool = False) -> WriteRequest:
    """Parse the options. Names match without regard to case.

    Raises:
        InvalidRequestError: An option is unknown or given twice, a value does not parse, or two do not go together.
    """
    properties = {name: value for name, value in options.items() if name.lower().startswith(_PROPERTY)}
    others = {name: value for name, value in options.items() if name not in properties}
    given = by_known_names(others, _STREAM_NAMES if is_stream else _NAMES, {})
    if "path" not in given:
        raise InvalidRequestError(
            "The path of the table is missing",
            cause="A Python data source has no tables in Spark's catalog: saveAsTable and INSERT INTO need one",
            remedy='Give the path: .save("s3://bucket/table"), or use DeltaTable(…).append(df)',
        )
    merge, over = parse_boolean(given, "mergeSchema"), parse_boolean(given, "overwriteSchema")
    if merge and over:
        raise InvalidRequestError("mergeSchema and overwriteSchema exclude each other", remedy="Give one")
    app_id, version = given.get("txnAppId"), parse_integer(given, "txnVersion")
    if is_stream and version is not None:
        raise InvalidRequestError("A stream's txnVersion is its batch id", remedy="Leave the option out")
    if not is_stream and (app_id is None) != (version is None):
        raise InvalidRequestError("txnAppId and txnVersion belong together", remedy="Give both, or neither")
    mode = given.get("partitionOverwriteMode", "").lower() or None
    if mode not in (None, "static", "dynamic"):
        raise InvalidRequestError(f"The option partitionOverwriteMode must be static or dynamic, not {mode!r}")
    partition_by = parse_names(given, "partitionBy")
    definition: dict[str, object] = {}
    if partition_by is not None:
        definition["partition_by"] = partition_by
    if properties:
        definition["properties"] = properties
    return WriteRequest(
        path=given["path"],
        storage_options=storage_options(given),
        replace_where=given.get("replaceWhere"),
        partition_overwrite_mode=mode,
        merge_schema=merge,
        overwrite_schema=over,
        app_id=app_id,
        txn_version=version,
        user_metadata=given.get("userMetadata"),
        definition=definition,
    )
