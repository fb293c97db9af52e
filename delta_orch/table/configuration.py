"""The log's facts about a table apart from its files: protocol and metadata, each part parsed once.

Every question about a table as a whole is answered here or by a pure function of this value. Whether this release may
read or write the table is asked where the value is made, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from delta_orch.errors import AppendOnlyError, InvalidPropertyError, ProtocolViolationError
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.schema import parse_schema, serialize_schema
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.types import StructType, fields_of
from delta_orch.table.column_mapping import (
    PHYSICAL_NAME,
    ColumnMappingMode,
    ensure_distinct_columns,
    ensure_distinct_names,
    physical_partitions,
    without_column_mapping,
)
from delta_orch.table.registry import (
    FEATURES_BY_NAME,
    canonical_features,
    ensure_readable,
    ensure_writable,
    has_check_constraints,
    has_column_mapping,
)


@dataclass(frozen=True)
class TableConfiguration:
    """Protocol and metadata of a table, as of a version or as a change will leave them.

    Immutable. Everything else is derived on first use and kept. Two are equal if protocol and metadata are.
    """

    protocol: Protocol
    metadata: Metadata

    @classmethod
    def for_reading(cls, protocol: Protocol, metadata: Metadata) -> TableConfiguration:
        """The configuration of a table that this release can read.

        Raises:
            UnsupportedVersionError, UnsupportedFeatureError: The table needs what this release does not read.
            ProtocolViolationError: The protocol contradicts itself.
        """
        configuration = cls(protocol, metadata)
        ensure_readable(protocol, metadata)
        return configuration

    def for_writing(self) -> TableConfiguration:
        """This configuration, known to be one that this release can write. The answer is kept.

        Raises:
            UnsupportedVersionError, UnsupportedFeatureError: The table needs what this release does not write.
            ProtocolViolationError: The protocol contradicts itself, or a partition column is not in the schema.
        """
        assert self._is_writable
        return self

    @cached_property
    def _is_writable(self) -> bool:
        ensure_writable(self.protocol, self.metadata)
        _ = self.partition_columns
        return True

    @cached_property
    def schema(self) -> StructType:
        """The columns. Raises ProtocolViolationError, UnsupportedFeatureError where they cannot be parsed, or two have
        one name but for case."""
        text = self.metadata.schema_string
        schema = parse_schema(text)
        ensure_distinct_names(schema)
        is_mapped = PHYSICAL_NAME not in text or (self.supports("columnMapping") and has_column_mapping(self.metadata))
        # Without column mapping in force, log and files know columns by their own names, whatever the schema says.
        return schema if is_mapped else without_column_mapping(schema)

    @property
    def configuration(self) -> Mapping[str, str]:
        """The table properties as the metadata spells them."""
        return self.metadata.configuration

    @cached_property
    def properties(self) -> TableProperties:
        """The table properties, typed. A property with an invalid value raises InvalidPropertyError on access."""
        return TableProperties.parse(self.metadata.configuration)

    @cached_property
    def partition_columns(self) -> tuple[str, ...]:
        """The partition columns as the schema spells them; the metadata may differ in case.

        Raises:
            ProtocolViolationError: One is not in the schema, or is named twice.
        """
        names: list[str] = []
        for name in self.metadata.partition_columns:
            field = self.schema.find(name)
            if field is None or field.name in names:
                raise ProtocolViolationError(
                    f"The partition column {name} is {'not in the schema' if field is None else 'named twice'}",
                    remedy="Restore the commit that wrote the metadata from a backup",
                    column=name,
                )
            names.append(field.name)
        return tuple(names)

    @cached_property
    def physical_partitions(self) -> tuple[str, ...]:
        """The physical names of the partition columns. Raises as `partition_columns`."""
        return physical_partitions(self.schema, self.partition_columns)

    @cached_property
    def has_rules(self) -> bool:
        """Whether something may be asked of rows beside their types and NOT NULL."""
        return has_check_constraints(self.metadata) or any(field.metadata for field in fields_of(self.schema))

    @cached_property
    def features(self) -> frozenset[str]:
        """The supported features under today's names: those the protocol lists or its versions imply."""
        return canonical_features(self.protocol)

    @cached_property
    def column_mapping(self) -> ColumnMappingMode:
        """The mode in force. The property counts only where the feature is supported; readers ignore it elsewhere.

        Raises:
            ProtocolViolationError: Two columns have the same physical name or id.
        """
        if not self.supports("columnMapping"):
            return ColumnMappingMode.NONE
        mode = ColumnMappingMode(self.properties.column_mapping_mode)
        if mode is not ColumnMappingMode.NONE:
            ensure_distinct_columns(self.schema)
        return mode

    def ensure_rows_may_leave(self) -> None:
        """Raise AppendOnlyError where the table keeps every row (PROTOCOL, "Append-only Tables")."""
        if self.properties.append_only:
            raise AppendOnlyError(
                "The table is append-only: no row may be removed or replaced",
                cause="The table property delta.appendOnly is true",
                remedy="Append instead, or set the property to false first",
            )

    def supports(self, feature: str) -> bool:
        """Whether the protocol lists or implies a feature, under this name or an older one."""
        return feature in self.features

    def enables(self, feature: str) -> bool:
        """Whether a feature is supported and its table property switches it on.

        Raises:
            InvalidPropertyError: The value of the property is invalid.
        """
        switch = FEATURES_BY_NAME[feature].enabled_by
        return switch is not None and self.supports(feature) and self.properties.switches_on(switch)

    @property
    def assigns_row_ids(self) -> bool:
        """Whether writers give row ids to the files they add: row tracking is supported and not suspended. (It is
        *enabled* where all files have ids and a copied row keeps its id; PROTOCOL, "Row Tracking".)

        Raises:
            InvalidPropertyError: Row tracking is enabled and suspended at once.
        """
        if not self.supports("rowTracking"):
            return False
        if self.properties.row_tracking_suspended and self.properties.enable_row_tracking:
            raise InvalidPropertyError(
                "Row tracking is enabled and suspended at once",
                cause="delta.enableRowTracking and delta.rowTrackingSuspended are both true",
                remedy="Set one of them to false",
                property="delta.rowTrackingSuspended",
            )
        return not self.properties.row_tracking_suspended

    # What a change makes of it

    def after(self, protocol: Protocol | None, metadata: Metadata | None) -> TableConfiguration:
        """The configuration with another protocol or metadata; itself where both are None or the same."""
        protocol, metadata = protocol or self.protocol, metadata or self.metadata
        if protocol is self.protocol and metadata is self.metadata:
            return self
        changed = TableConfiguration(protocol, metadata)
        if metadata.schema_string == self.metadata.schema_string and "schema" in self.__dict__:
            changed.__dict__["schema"] = self.schema
        return changed

    def with_properties(self, configuration: Mapping[str, str]) -> TableConfiguration:
        """The configuration with these table properties and no others."""
        return self.after(None, replace(self.metadata, configuration=dict(configuration)))

    def with_schema(self, schema: StructType) -> TableConfiguration:
        """The configuration with another schema. The text of a schema that stays is kept as its writer spelled it."""
        if schema == self.schema:
            return self
        changed = self.after(None, replace(self.metadata, schema_string=serialize_schema(schema)))
        changed.__dict__["schema"] = schema
        return changed


# They control how files and the log are kept, not what a row or a commit must be.
_UPKEEP = frozenset(
    {
        "delta.autooptimize.autocompact",
        "delta.autooptimize.optimizewrite",
        "delta.checkpointinterval",
        "delta.checkpoint.writestatsasjson",
        "delta.checkpoint.writestatsasstruct",
        "delta.checkpointretentionduration",
        "delta.deletedfileretentionduration",
        "delta.enableexpiredlogcleanup",
        "delta.enablefullretentionrollback",
        "delta.logretentionduration",
        "delta.parquet.compression.codec",
        "delta.sampleretentionduration",
        "delta.targetfilesize",
        "delta.tunefilesizesforrewrites",
    }
)
_OF_NO_CONSEQUENCE = frozenset({"comment", "delta.identity.highWaterMark"})


def concerns_writers(before: Metadata, after: Metadata) -> bool:
    """Whether a commit that was prepared under `before` may be wrong under `after`.

    Names, comments, the user's own properties and those of upkeep make no difference. Neither does the high-water mark
    of an identity column, to a commit that uses none of its values.
    """
    same = replace(
        after,
        name=before.name,
        description=before.description,
        created_time=before.created_time,
        configuration=before.configuration,
        schema_string=before.schema_string,
    )
    if same != before:
        return True
    if _binding(before.configuration) != _binding(after.configuration):
        return True
    if before.schema_string == after.schema_string:
        return False
    return _essence(before) != _essence(after)


def _binding(configuration: Mapping[str, str]) -> dict[str, str]:
    lowered = {key.lower(): value for key, value in configuration.items()}
    return {key: value for key, value in lowered.items() if key.startswith("delta.") and key not in _UPKEEP}


def _essence(metadata: Metadata) -> StructType:
    from delta_orch.protocol.schema_edit import without_metadata

    return without_metadata(parse_schema(metadata.schema_string), _OF_NO_CONSEQUENCE.__contains__)
