"""The object that `DeltaTable.alter()` returns. Each method adds one change; `commit()` applies them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Unpack

from delta_orch.arguments import checked
from delta_orch.errors import InvalidRequestError
from delta_orch.log.write.commit_options import CommitOptions
from delta_orch.protocol.schema_edit import ColumnPath
from delta_orch.protocol.table_properties import ensure_no_credential, property_texts
from delta_orch.protocol.type_text import declared_lengths, declared_type
from delta_orch.protocol.types import CHAR_VARCHAR_TYPE, DataType, StructField
from delta_orch.verbs.alter import columns as column_changes
from delta_orch.verbs.alter import table_changes
from delta_orch.verbs.alter.alteration import alter, plan_alteration
from delta_orch.verbs.alter.columns import NewColumn, Position
from delta_orch.verbs.alter.draft import Change

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.select import EngineChoice
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.table.configuration import TableConfiguration


def _field_of(
    path: ColumnPath, data_type: DataType | pa.DataType | str, nullable: bool = True, comment: str | None = None
) -> StructField:
    """Return a column without a name, from a type of this package, a type of Arrow, or a type in Spark SQL.

    Raises:
        SchemaMismatchError: The value is not a type.
        InvalidPropertyError: The comment holds a credential.
    """
    ensure_no_credential(comment, "comment of the column")
    declared, metadata = declared_type(data_type, path)
    field_metadata = {**metadata} if comment is None else {**metadata, "comment": comment}
    return StructField("", declared, nullable, field_metadata)


@checked
class Alteration:
    """Changes to a table's metadata and protocol, collected in order and committed as one version, or not at all.

        table.alter().set_properties({"delta.columnMapping.mode": "name"}).rename_column("id", "order_id").commit()

    Nothing is read or written before `commit()`. `commit()` raises an error if a change is impossible. Each method
    returns the alteration itself. A column is named by text (`"a"`, `"s.a"`, a name with dots in backticks) or by a
    sequence of names. `element`, `key` and `value` lead into arrays and maps.
    """

    def __init__(self, log: TableLog, read_snapshot: Callable[[], Snapshot]) -> None:
        self._log = log
        self._read_snapshot = read_snapshot
        self._changes: list[Change] = []

    def _also(self, change: Change) -> Alteration:
        self._changes.append(change)
        return self

    # Properties, name and description

    def set_properties(self, properties: Mapping[str, str]) -> Alteration:
        """Set table properties. The protocol gains the features that they need.

        Unknown `delta.*` keys and invalid values are refused. `delta.feature.<name>` with the value `supported` adds a
        feature.
        """
        return self._also(table_changes.set_properties(property_texts(properties)))

    def unset_properties(self, *keys: str, if_exists: bool = False) -> Alteration:
        """Remove properties. Their defaults apply again. A missing property is an error unless `if_exists` is true."""
        return self._also(table_changes.unset_properties(keys, if_exists))

    def set_name(self, name: str) -> Alteration:
        """Set the table's name in its metadata. An empty text removes it."""
        return self._also(table_changes.set_table_text("name", name))

    def set_description(self, description: str) -> Alteration:
        """Set the table's description. An empty text removes it."""
        return self._also(table_changes.set_table_text("description", description))

    # Protocol

    def add_feature(self, *names: str) -> Alteration:
        """Add table features and the features that they need (PROTOCOL, "Table Features"). Older clients may no longer
        be able to read or write the table."""
        return self._also(table_changes.add_features(names))

    def drop_feature(self, name: str, *, truncate_history: bool = False) -> Alteration:
        """Remove a table feature. If something must be done first, the error names it.

        `commit` rewrites files that only readers of the feature understand (`columnMapping`, `typeWidening`,
        `deletionVectors`, `variantShredding`). Rows and row ids do not change. If older versions may need the feature,
        `checkpointProtection` replaces it until these versions are gone.

        Args:
            truncate_history: Clean up these older versions instead, once they are older than
                `delta.dropFeatureTruncateHistory.retentionDuration` (by default a day). Before that, `commit` removes
                the feature's traces from the newest version, and raises InvalidRequestError that says when to try
                again.
        """
        return self._also(table_changes.drop_feature(name, truncate_history))

    def upgrade_protocol(
        self, *, min_reader_version: int | None = None, min_writer_version: int | None = None
    ) -> Alteration:
        """Raise the protocol to at least these versions. It is never lowered."""
        return self._also(table_changes.upgrade_protocol(min_reader_version, min_writer_version))

    # Constraints

    def add_constraint(self, name: str, expression: str) -> Alteration:
        """Add a CHECK constraint, which must be true for every row. `commit` reads the existing rows. Null is a
        violation (PROTOCOL, "CHECK Constraints")."""
        return self._also(table_changes.add_constraint(name, expression))

    def drop_constraint(self, name: str, *, if_exists: bool = False) -> Alteration:
        """Remove a CHECK constraint."""
        return self._also(table_changes.drop_constraint(name, if_exists))

    # Columns

    def add_column(
        self,
        path: ColumnPath,
        data_type: DataType | pa.DataType | str,
        *,
        nullable: bool = True,
        comment: str | None = None,
        first: bool = False,
        after: str | None = None,
    ) -> Alteration:
        """Add a column or a field of a struct. It is null in existing rows.

        Args:
            data_type: A type of this package or of Arrow, or a type in Spark SQL: `bigint`, `decimal(10,2)`,
                `array<struct<a:int>>`, `varchar(20)`.
            nullable: False is allowed only if the table, or the struct of a field, has no rows.
            first, after: The position among the columns of the same level, by default the end.
        """
        new = NewColumn(path, _field_of(path, data_type, nullable, comment), Position(first, after))
        return self._also(column_changes.add_columns((new,)))

    def add_columns(self, columns: object) -> Alteration:
        """Add several columns to the end: a mapping of names to types, or a schema as `DeltaTable.create` takes it."""
        # A schema of Polars is also a mapping, but its types are those of Polars.
        if isinstance(columns, Mapping) and not hasattr(columns, "__arrow_c_schema__"):
            new = tuple(NewColumn(path, _field_of(path, data_type)) for path, data_type in columns.items())
        else:
            from delta_orch.verbs.create import parse_schema_argument

            new = tuple(NewColumn((field.name,), field) for field in parse_schema_argument(columns))
        if not new:
            raise InvalidRequestError("The list of columns is empty", remedy="Pass at least one column")
        return self._also(column_changes.add_columns(new))

    def sync_identity(self, path: ColumnPath) -> Alteration:
        """Continue an identity column after the values that rows brought themselves (`allow_explicit_insert`).
        Otherwise the column could generate these values again. `commit` reads the column. It conflicts with another
        commit that adds rows meanwhile."""
        return self._also(column_changes.sync_identity(path))

    def rename_column(self, path: ColumnPath, new_name: str) -> Alteration:
        """Rename a column. No file is rewritten. Needs column mapping (PROTOCOL, "Column Mapping")."""
        return self._also(column_changes.rename_column(path, new_name))

    def drop_columns(self, *paths: ColumnPath, if_exists: bool = False) -> Alteration:
        """Remove columns. No file is rewritten, and the values stay in the files until `purge`. Needs column mapping. A
        missing column is an error unless `if_exists` is true."""
        if not paths:
            raise InvalidRequestError("The list of columns is empty", remedy="Pass at least one column")
        return self._also(column_changes.drop_columns(paths, if_exists))

    def move_column(self, path: ColumnPath, *, first: bool = False, after: str | None = None) -> Alteration:
        """Move a column to the front, or after another column of the same level."""
        if not first and after is None:
            raise InvalidRequestError(
                "The new position of the column is missing", remedy="Pass first=True, or after='name'"
            )
        return self._also(column_changes.move_column(path, Position(first, after)))

    def change_type(self, path: ColumnPath, data_type: DataType | pa.DataType | str) -> Alteration:
        """Widen a column's type, at any depth. Needs `delta.enableTypeWidening` (PROTOCOL, "Type Widening"). Without
        it, a `char(n)` or `varchar(n)` may become a `varchar` of as many characters or more, or a `string`."""
        field = _field_of(path, data_type)
        declared = field.metadata.get(CHAR_VARCHAR_TYPE)
        lengths = declared_lengths(declared) if isinstance(declared, str) else ()
        return self._also(column_changes.change_type(path, field.data_type, lengths))

    def set_not_null(self, path: ColumnPath) -> Alteration:
        """Refuse nulls from now on. `commit` first checks that the existing rows have none."""
        return self._also(column_changes.set_not_null(path))

    def drop_not_null(self, path: ColumnPath) -> Alteration:
        """Allow nulls in the column."""
        return self._also(column_changes.drop_not_null(path))

    def set_default(self, path: ColumnPath, expression: str) -> Alteration:
        """Set the value, in Spark SQL, of rows that are written without the column. Existing rows do not change
        (PROTOCOL, "Default Columns")."""
        return self._also(column_changes.set_default(path, expression))

    def drop_default(self, path: ColumnPath) -> Alteration:
        """Remove a column's default."""
        return self._also(column_changes.set_default(path, None))

    def set_column_comment(self, path: ColumnPath, comment: str) -> Alteration:
        """Set a column's comment. An empty text removes it."""
        return self._also(column_changes.set_comment(path, comment))

    # Clustering

    def cluster_by(self, *columns: ColumnPath) -> Alteration:
        """Cluster the table by up to four columns that have statistics. Without columns, clustering ends (PROTOCOL,
        "Clustered Table")."""
        return self._also(table_changes.cluster_by(columns))

    # Commit

    def preview(self) -> TableConfiguration:
        """Return the table as `commit` would leave it. No row is read and nothing is written. Raises as `commit`."""
        return plan_alteration(self._read_snapshot(), self._changes)[0].table

    def commit(self, *, engine: EngineChoice = "auto", **options: Unpack[CommitOptions]) -> CommitResult:
        """Commit all changes, in their order, as the table's next version.

        Args:
            engine: The engine that reads existing rows, if a new constraint or NOT NULL must be checked.
            options: `CommitOptions`.

        Returns: `skipped` if the table has all the changes already, or if the `txn` is recorded.

        Raises:
            InvalidRequestError (and its subclasses): A change is impossible. Nothing was changed.
            ConstraintViolationError: Rows violate a new constraint. The message shows one row. Nothing was changed.
            UnsupportedFeatureError: This release could not write the table afterwards. Nothing was changed.
            ConflictError: The commit of another writer conflicts with this one. Nothing was changed. Try again.
        """
        return alter(self._log, self._read_snapshot, tuple(self._changes), engine, options)
