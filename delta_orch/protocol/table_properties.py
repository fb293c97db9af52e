"""Table properties, typed (`metaData.configuration`).

Reading is tolerant: unknown keys are kept by the metadata and ignored here, and a value that cannot be read is an error
only where it decides something. Setting is strict: `ensure_valid_properties` refuses unknown `delta.*` keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from delta_orch.errors import InvalidPropertyError
from delta_orch.redaction import tells_secret

_DAY_MS = 24 * 60 * 60 * 1000
_LONGEST_PREFIX = 64

_UNIT_MS: Mapping[str, float] = {
    "nanosecond": 1e-6,
    "microsecond": 1e-3,
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": _DAY_MS,
    "week": 7 * _DAY_MS,
}
# Compiled on first use: most tables set no such property.
_INTERVAL_PART = r"(-?\d+)\s*([a-z]+?)s?(?=\s|$)"
# As Hadoop names them: `fs.s3a.secret.key`, `fs.azure.account.key.<account>`.
_CREDENTIAL = r"(?i)(?:spark\.hadoop\.)?fs\.(?:.*\.)?(?:key|secret|token|password|sas)(?:\..*)?"
_LARGEST_INTEGER = 2**63 - 1
_LONGEST_INTERVAL_MS = _LARGEST_INTEGER // 1000
_SIZE = r"(\d+)\s*([kmgt]?)i?b?"
_SIZE_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_interval_ms(text: str) -> int:
    """`interval 1 week`, `2 days 3 hours`, `interval 30 days` → milliseconds. Months and years have no fixed length
    and are refused, as the reference implementation does.

    Raises:
        ValueError: Not such an interval.
    """
    body = text.strip().lower().removeprefix("interval").strip()
    parts = re.findall(_INTERVAL_PART, body)
    if not parts or re.sub(_INTERVAL_PART, "", body).strip() or any(unit not in _UNIT_MS for _, unit in parts):
        raise ValueError(f"{text!r} is not an interval of weeks, days, hours, minutes or seconds")
    total = sum(int(n) * _UNIT_MS[unit] for n, unit in parts)
    if total < 0:
        raise ValueError(f"{text!r} is negative")
    if total > _LONGEST_INTERVAL_MS:
        raise ValueError(f"{text!r} is longer than an interval of Spark can be")
    return int(total)


def parse_size_bytes(text: str) -> int:
    """`134217728`, `128mb`, `1g` → bytes. Raises ValueError."""
    m = re.fullmatch(_SIZE, text.strip().lower())
    if m is None:
        raise ValueError(f"{text!r} is not a size in bytes")
    size_bytes = int(m[1]) * _SIZE_FACTOR[m[2]]
    if size_bytes > _LARGEST_INTEGER:
        raise ValueError(f"{text!r} does not fit into 64 bits")
    return size_bytes


OWNER = "delta_orch.owner"
"""The property that names who replaces the rows of a table (`pipeline.target_table`)."""
WINDOWS = "delta_orch.partitions."
"""The properties that tell which partitions a column of texts or numbers holds: months are spelled as days are."""


def parse_boolean(text: str) -> bool:
    """`true` or `false` in any case. Raises ValueError."""
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError(f"{text!r} is neither true nor false")


def parse_column_list(text: str) -> tuple[tuple[str, ...], ...]:
    """Comma-separated column paths, backticks around names that hold dots or commas. Raises ValueError."""
    paths, path, pos = [], [], 0
    token = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,.\s][^`,.]*?))\s*([.,]|$)")
    while pos < len(text):
        m = token.match(text, pos)
        if m is None:
            raise ValueError(f"{text!r} is not a list of columns")
        path.append(m[1].replace("``", "`") if m[1] else m[2])
        if m[3] != ".":
            paths.append(tuple(path))
            path = []
        pos = m.end()
    if path:
        raise ValueError(f"{text!r} ends in the middle of a column name")
    return tuple(paths)


def _integer(text: str) -> int:
    n = int(text)
    if not -_LARGEST_INTEGER <= n <= _LARGEST_INTEGER:
        raise ValueError(f"{text!r} does not fit into 64 bits")
    return n


def _positive(text: str) -> int:
    n = _integer(text)
    if n <= 0:
        raise ValueError(f"{text!r} is not positive")
    return n


def _prefix_length(text: str) -> int:
    n = _positive(text)
    if n > _LONGEST_PREFIX:
        raise ValueError(f"{text!r} is more than {_LONGEST_PREFIX}")
    return n


def _at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        n = _integer(text)
        if n < minimum:
            raise ValueError(f"{text!r} is below {minimum}")
        return n

    return parse


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for value in allowed:
            if text.strip().lower() == value.lower():
                return value
        raise ValueError(f"{text!r} is not one of {', '.join(allowed)}")

    return parse


def _format_version(text: str) -> str:
    version = text.strip()
    if re.fullmatch(r"1\.0\.0|2\.\d+\.\d+", version) is None:
        raise ValueError(f"{text!r} is neither 1.0.0 nor 2.x.y")
    return version


class _Property(NamedTuple):
    """How one key is read, and which attribute of `TableProperties` it fills; None for keys that are only validated."""

    attribute: str | None
    parse: Callable[[str], object]


def _property(key: str, parse: Callable[[str], object], default: object = None, *, meaning: str = "") -> Any:
    """An attribute of `TableProperties`, filled by one key; docs/properties.md shows the meaning of those that users
    set."""
    return field(default=default, metadata={"key": key, "parse": parse, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class TableProperties:
    """The properties that decide something, with the protocol's or the reference implementation's defaults.

    Durations in milliseconds, sizes in bytes; None where nothing is set and there is no default. A property with an
    invalid value raises InvalidPropertyError when it is read: whatever does not depend on it still works.
    """

    append_only: bool = _property(
        "delta.appendOnly", parse_boolean, False, meaning="commits must not remove or replace rows"
    )
    auto_compact: str | None = _property(
        "delta.autoOptimize.autoCompact",
        _one_of("true", "false", "auto", "legacy"),
        meaning="`true`, `auto`, `legacy`: a write compacts partitions that have 50 small files or more (below 64 "
        "MiB), into files of at most 128 MiB, in a commit of its own. If that fails, a warning is logged",
    )
    checkpoint_interval: int = _property(
        "delta.checkpointInterval", _positive, 10, meaning="versions from one checkpoint to the next"
    )
    checkpoint_policy: str = _property(
        "delta.checkpointPolicy", _one_of("classic", "v2"), "classic", meaning="kind of checkpoint: `classic` or `v2`"
    )
    checkpoint_write_stats_as_json: bool = _property(
        "delta.checkpoint.writeStatsAsJson", parse_boolean, True, meaning="checkpoints hold statistics as JSON"
    )
    checkpoint_write_stats_as_struct: bool = _property(
        "delta.checkpoint.writeStatsAsStruct",
        parse_boolean,
        False,
        meaning="checkpoints hold statistics and partition values as columns",
    )
    column_mapping_mode: str = _property(
        "delta.columnMapping.mode",
        _one_of("none", "name", "id"),
        "none",
        meaning="columns are found in files by `name` or `id`",
    )
    compression_codec: str = _property(
        "delta.parquet.compression.codec",
        _one_of("uncompressed", "snappy", "gzip", "lz4_raw", "zstd"),
        "zstd",
        meaning="of data files: `uncompressed`, `snappy`, `gzip`, `lz4_raw`, `zstd`",
    )
    data_skipping_num_indexed_cols: int = _property(
        "delta.dataSkippingNumIndexedCols",
        _at_least(-1),
        32,
        meaning="how many columns, in schema order, get statistics; `-1`: all",
    )
    data_skipping_stats_columns: tuple[tuple[str, ...], ...] | None = _property(
        "delta.dataSkippingStatsColumns",
        parse_column_list,
        meaning="the columns that get statistics, separated by commas; overrides the number",
    )
    deleted_file_retention_ms: int = _property(
        "delta.deletedFileRetentionDuration",
        parse_interval_ms,
        7 * _DAY_MS,
        meaning="how long vacuum keeps files that the newest version does not use",
    )
    drop_feature_history_retention_ms: int = _property(
        "delta.dropFeatureTruncateHistory.retentionDuration",
        parse_interval_ms,
        _DAY_MS,
        meaning="how long the history of a dropped feature is kept before it can be truncated",
    )
    enable_change_data_feed: bool = _property(
        "delta.enableChangeDataFeed",
        parse_boolean,
        False,
        meaning="commits record changes row by row where data files do not show them",
    )
    enable_deletion_vectors: bool = _property(
        "delta.enableDeletionVectors", parse_boolean, False, meaning="rows can be deleted by marking them"
    )
    enable_expired_log_cleanup: bool = _property(
        "delta.enableExpiredLogCleanup", parse_boolean, True, meaning="the log is cleaned up after checkpoints"
    )
    enable_iceberg_compat_v1: bool = _property(
        "delta.enableIcebergCompatV1",
        parse_boolean,
        False,
        meaning="every version can be converted to an Iceberg table",
    )
    enable_iceberg_compat_v2: bool = _property(
        "delta.enableIcebergCompatV2", parse_boolean, False, meaning="as V1, with arrays and maps"
    )
    enable_iceberg_compat_v3: bool = _property(
        "delta.enableIcebergCompatV3",
        parse_boolean,
        False,
        meaning="as V2, with deletion vectors and row ids; it stays on",
    )
    enable_in_commit_timestamps: bool = _property(
        "delta.enableInCommitTimestamps",
        parse_boolean,
        False,
        meaning="commits carry their time; file times do not matter",
    )
    in_commit_timestamp_enablement_version: int | None = _property(
        "delta.inCommitTimestampEnablementVersion", _at_least(0)
    )
    in_commit_timestamp_enablement_ms: int | None = _property(
        "delta.inCommitTimestampEnablementTimestamp", _at_least(0)
    )
    enable_row_tracking: bool = _property(
        "delta.enableRowTracking", parse_boolean, False, meaning="rows keep their ids when files are rewritten"
    )
    enable_type_widening: bool = _property(
        "delta.enableTypeWidening", parse_boolean, False, meaning="column types can be widened"
    )
    enable_variant_shredding: bool = _property(
        "delta.enableVariantShredding", parse_boolean, False, meaning="variants are written in typed columns"
    )
    isolation_level: str = _property(
        "delta.isolationLevel",
        _one_of("Serializable", "WriteSerializable"),
        "WriteSerializable",
        meaning="`WriteSerializable` or `Serializable` (docs/transactions.md)",
    )
    max_column_id: int = _property("delta.columnMapping.maxColumnId", _at_least(0), 0)
    # Neither the protocol nor the reference implementation has a property for these.
    allow_nested_tables: bool = _property(
        "delta_orch.allowNestedTables",
        parse_boolean,
        False,
        meaning="the table may be created inside another table's directory, or around one",
    )
    log_compaction_interval: int | None = _property(
        "delta_orch.logCompactionInterval",
        _at_least(2),
        meaning="versions from one log compaction to the next; no compactions if not set",
    )
    log_retention_ms: int = _property(
        "delta.logRetentionDuration", parse_interval_ms, 30 * _DAY_MS, meaning="how far back the log is kept"
    )
    optimize_write: bool = _property(
        "delta.autoOptimize.optimizeWrite",
        parse_boolean,
        True,
        meaning="Spark shuffles the rows of a partition together before it writes them",
    )
    owner: str | None = _property(
        OWNER, str, meaning="who replaces rows of the table; steps of pipelines set it (docs/dagster.md)"
    )
    page_checksums: bool = _property(
        "delta_orch.pageChecksums",
        parse_boolean,
        False,
        meaning="pages written in process have checksums, which `fsck(deep=True)` verifies: 7% of the time of a "
        "write; Spark always writes them",
    )
    cluster_on_write: bool = _property(
        "delta_orch.clusterOnWrite",
        parse_boolean,
        False,
        meaning="appends and overwrites put their rows in the order of the clustering columns; the rows are kept "
        "meanwhile. Tasks of Spark's format (`df.write.format`) write them as they come",
    )
    parquet_format_version: str = _property(
        "delta.parquet.format.version", _format_version, "1.0.0", meaning="of data pages: `1.0.0`, or `2.x.y`"
    )
    randomize_file_prefixes: bool = _property(
        "delta.randomizeFilePrefixes",
        parse_boolean,
        False,
        meaning="data files are written below random prefixes instead of partition directories",
    )
    random_prefix_length: int = _property(
        "delta.randomPrefixLength", _prefix_length, 2, meaning="length of such a prefix"
    )
    require_checkpoint_protection_before_version: int | None = _property(
        "delta.requireCheckpointProtectionBeforeVersion", _at_least(0)
    )
    row_tracking_suspended: bool = _property(
        "delta.rowTrackingSuspended",
        parse_boolean,
        False,
        meaning="new files get no row ids; excludes `delta.enableRowTracking`",
    )
    set_transaction_retention_ms: int | None = _property(
        "delta.setTransactionRetentionDuration",
        parse_interval_ms,
        meaning="how long transaction identifiers are kept; forever if not set",
    )
    symlink_manifests: bool = _property(
        "delta.compatibility.symlinkFormatManifest.enabled",
        parse_boolean,
        False,
        meaning="commits keep the symlink manifests of the partitions that they change; excludes deletion vectors "
        "and column mapping",
    )
    target_file_size_bytes: int | None = _property(
        "delta.targetFileSize", parse_size_bytes, meaning="size of data files, for example `128mb`; 128 MiB if not set"
    )
    write_partition_columns_to_parquet: bool = _property(
        "delta.writePartitionColumnsToParquet", parse_boolean, False, meaning="data files contain the partition columns"
    )
    _invalid: Mapping[str, InvalidPropertyError] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def parse(cls, configuration: Mapping[str, str]) -> TableProperties:
        """Read the known keys; names match without regard to case."""
        values: dict[str, Any] = {}
        invalid: dict[str, InvalidPropertyError] = {}
        for key, text in configuration.items():
            definition = _BY_LOWER_KEY.get(key.lower())
            if definition is not None and (attribute := _PROPERTIES[definition].attribute) is not None:
                try:
                    values[attribute] = _parse_value(definition, text)
                except InvalidPropertyError as e:
                    invalid[attribute] = e
        properties = cls(**values, _invalid=invalid)
        for attribute in invalid:
            # Without a value, so that `__getattr__` is asked.
            object.__delattr__(properties, attribute)
        return properties

    def switches_on(self, key: str) -> bool:
        """Whether a property that enables a table feature does so.

        Args:
            key: In its canonical spelling, one that has an attribute here.

        Raises:
            InvalidPropertyError: Its value is invalid.
        """
        return getattr(self, _PROPERTIES[key].attribute or "") not in (False, "none", "classic")

    @property
    def iceberg_compat_versions(self) -> tuple[int, ...]:
        """The versions of Iceberg compatibility that are switched on; more than one contradict each other."""
        on = (self.enable_iceberg_compat_v1, self.enable_iceberg_compat_v2, self.enable_iceberg_compat_v3)
        return tuple(version for version, is_on in enumerate(on, 1) if is_on)

    @property
    def is_iceberg_compatible(self) -> bool:
        """Whether a version of Iceberg compatibility is switched on."""
        return self.enable_iceberg_compat_v1 or self.enable_iceberg_compat_v2 or self.enable_iceberg_compat_v3

    def ensure_valid(self) -> None:
        """Raise InvalidPropertyError where a property has an invalid value."""
        for error in self._invalid.values():
            raise error

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name in _ATTRIBUTES and (error := self._invalid.get(name)) is not None:
                raise error
            raise AttributeError(name)


_PROPERTIES: Mapping[str, _Property] = {
    **{f.metadata["key"]: _Property(f.name, f.metadata["parse"]) for f in fields(TableProperties) if f.metadata},
    "delta.minReaderVersion": _Property(None, _positive),
    "delta.minWriterVersion": _Property(None, _positive),
    "delta.rowTracking.materializedRowIdColumnName": _Property(None, str),
    "delta.rowTracking.materializedRowCommitVersionColumnName": _Property(None, str),
    "delta.checkpointRetentionDuration": _Property(None, parse_interval_ms),
    "delta.enableFullRetentionRollback": _Property(None, parse_boolean),
    "delta.sampleRetentionDuration": _Property(None, parse_interval_ms),
    "delta.tuneFileSizesForRewrites": _Property(None, parse_boolean),
}
PROPERTY_NAMES = tuple(_PROPERTIES)
"""Every key that is known, in its canonical spelling. `scripts/site_reference.py` lists them."""
_ATTRIBUTES = frozenset(p.attribute for p in _PROPERTIES.values())
_BY_LOWER_KEY: Mapping[str, str] = {key.lower(): key for key in _PROPERTIES}
_OPEN_PREFIXES = ("delta.constraints.", "delta.feature.", "delta.universalformat.")


def ensure_valid_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Check properties a user sets, and return them with the known keys in their canonical spelling.

    Keys outside `delta.` are the user's own and free.

    Raises:
        InvalidPropertyError: An unknown `delta.*` key, or an invalid value. Nothing was set.
    """
    checked: dict[str, str] = {}
    for key, value in properties.items():
        if not isinstance(value, str):
            value = str(value).lower() if isinstance(value, bool) else str(value)
        lower = key.lower()
        if lower in _BY_LOWER_KEY:
            key = _BY_LOWER_KEY[lower]
            _parse_value(key, value)
        elif lower.startswith("delta.") and not lower.startswith(_OPEN_PREFIXES):
            raise InvalidPropertyError(
                f"Unknown table property {key!r}",
                cause="Names that begin with 'delta.' are the protocol's",
                remedy=_suggestion(key) or "Use a name of your own without that prefix",
                property=key,
            )
        checked[key] = value
    return checked


def _parse_value(key: str, text: str) -> object:
    try:
        return _PROPERTIES[key].parse(text)
    except ValueError as e:
        cause = str(e)
    # Not within: what is raised there carries an error that repeats the value as it is.
    raise InvalidPropertyError(f"Table property {key} has an invalid value", cause=cause, property=key, value=text)


def _suggestion(key: str) -> str | None:
    from difflib import get_close_matches

    close = get_close_matches(key, _PROPERTIES, n=1)
    return f"Did you mean {close[0]!r}?" if close else None


CONSTRAINT_PREFIX = "delta.constraints."
INTERNAL_PROPERTIES = frozenset(
    key.lower()
    for key in (
        "delta.columnMapping.maxColumnId",
        "delta.inCommitTimestampEnablementVersion",
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.requireCheckpointProtectionBeforeVersion",
        "delta.rowTracking.materializedRowIdColumnName",
        "delta.rowTracking.materializedRowCommitVersionColumnName",
    )
)
"""The properties that the table records about itself. Changing it would break what depends on it."""


def property_texts(properties: object) -> dict[str, str]:
    """Properties as a dictionary of strings; numbers and booleans become strings.

    Raises:
        InvalidPropertyError: Not a mapping, a name that is empty or not a string, or a value of another type.
    """
    if not isinstance(properties, Mapping):
        raise InvalidPropertyError(f"Properties must be a mapping of names to values, not {properties!r}")
    checked = {}
    for key, value in properties.items():
        if not isinstance(key, str) or not key:
            raise InvalidPropertyError(
                f"The name of a table property is a string, not {key!r}", remedy="Pass a non-empty string"
            )
        if not isinstance(value, str | bool | int | float):
            raise InvalidPropertyError(
                f"The property {key} must have a string as its value, not {value!r}", property=key
            )
        checked[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return checked


def ensure_settable(properties: Mapping[str, str], *, on_new_table: bool) -> dict[str, str]:
    """Properties a user sets, checked and in their canonical spelling.

    Raises:
        InvalidPropertyError: An unknown `delta.*` key, an invalid value, a credential, a key that only the table itself
            may change, or a constraint on an existing table, whose rows would have to be checked first.
    """
    _ensure_not_internal(properties)
    if not on_new_table:
        _ensure_no_constraint(properties, "add_constraint(name, expression), which checks the rows first")
    for key, value in properties.items():
        # A constraint's name does not describe its expression.
        setting = "" if key.startswith(CONSTRAINT_PREFIX) else f"{key}={value}"
        if re.fullmatch(_CREDENTIAL, key) or tells_secret(value) or tells_secret(setting):
            raise _credential(f"table property {key}", property=key)
        try:
            f"{key}{value}".encode()
        except UnicodeEncodeError as e:
            raise InvalidPropertyError(
                f"Table property {key!a} is not valid Unicode", cause=str(e), property=ascii(key)
            ) from None
    return ensure_valid_properties(properties)


def ensure_no_credential(text: str | None, what: str) -> None:
    """Check a text that a table is to keep, such as a comment.

    Raises:
        InvalidPropertyError: It holds a password, a key, a token or a signature. The error does not repeat it.
    """
    if text and tells_secret(text):
        raise _credential(what)


def _credential(what: str, **context: str) -> InvalidPropertyError:
    return InvalidPropertyError(
        f"The {what} would hold a credential",
        cause="Whoever reads the table reads it, in every version",
        remedy="Give credentials as storage options or through the environment",
        **context,
    )


def ensure_removable(keys: Iterable[str]) -> None:
    """Raise InvalidPropertyError for keys that only the table itself, or another request, may remove."""
    keys = tuple(keys)
    _ensure_not_internal(keys)
    _ensure_no_constraint(keys, "drop_constraint(name)")


def find_property(configuration: Mapping[str, str], key: str) -> str | None:
    """The key as the table spells it: an exact match, or for the protocol's own names one that differs in case."""
    if key in configuration:
        return key
    if key.lower().startswith("delta."):
        return next((k for k in configuration if k.lower() == key.lower()), None)
    return None


def with_properties_set(configuration: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """A table's properties with others set. A table may spell a key in its own way: there are not two of one name."""
    result = dict(configuration)
    for key, value in given.items():
        result.pop(find_property(result, key) or key, None)
        result[key] = value
    return result


def _ensure_not_internal(keys: Iterable[str]) -> None:
    for key in keys:
        if not isinstance(key, str) or not key:
            raise InvalidPropertyError(
                f"The name of a table property is a string, not {key!r}", remedy="Pass a non-empty string", property=key
            )
        if key.lower() in INTERNAL_PROPERTIES:
            raise InvalidPropertyError(
                f"Table property {key} belongs to the table itself",
                cause="It records what the table has done, for example which column ids it has given out",
                remedy="Leave it out: the table sets it where it is needed",
                property=key,
            )


def _ensure_no_constraint(keys: Iterable[str], remedy: str) -> None:
    for key in keys:
        if key.lower().startswith(CONSTRAINT_PREFIX):
            raise InvalidPropertyError(
                f"Table property {key} is a constraint, not a setting", remedy=f"Use {remedy}", property=key
            )
