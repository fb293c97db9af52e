"""A Delta table as a Dagster resource."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import ConfigDict, Field, field_validator

from delta_orch.change_feed.change_feed import ChangeFeed
from delta_orch.dagster.run import ensure_whole
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.read.history import HistoryEntry
from delta_orch.log.read.time_travel import Timestamp

if TYPE_CHECKING:
    import pyarrow.compute as pc


class DeltaTableResource(dg.ConfigurableResource[Any]):
    """One Delta table, for assets that read or write it themselves, for sensors and for maintenance.

    Making one touches nothing; each method opens the table anew, so a resource may be kept and sent to other processes.

    ```python
    flights = DeltaTableResource(table_uri="s3://lake/flights", storage_options={"key": dg.EnvVar("LAKE_KEY")})
    ```
    """

    # Options may be credentials.
    model_config = ConfigDict(hide_input_in_errors=True)

    table_uri: str = Field(description="Where the table is: a path or a URI.")
    storage_options: dict[str, str] = Field(
        default={},
        repr=False,
        description="Options of the store. Give secrets as dg.EnvVar: Dagster shows plain values in its UI.",
    )

    # Before, as a variable would be a text like any other afterwards.
    @field_validator("table_uri", mode="before")
    @classmethod
    def _check_place(cls, value: str) -> str:
        if isinstance(value, str) and not isinstance(value, dg.EnvVar) and not value.strip():
            raise InvalidRequestError("table_uri is empty", remedy="Name the folder of the table, such as s3://lake/t")
        return value

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Raises InvalidRequestError: The run leaves steps out. See `run.ensure_whole`."""
        ensure_whole(context)

    def table(self) -> DeltaTable:
        """The table, whether or not it exists yet."""
        return DeltaTable(resolve_env(self.table_uri), resolve_options(self.storage_options))

    def snapshot(self, version: int | None = None, timestamp: Timestamp | None = None) -> TableSnapshot:
        """A version of the table. See `DeltaTable.snapshot`."""
        return self.table().snapshot(version=version, timestamp=timestamp)

    def changes(
        self,
        *,
        starting_version: int | None = None,
        ending_version: int | None = None,
        starting_timestamp: Timestamp | None = None,
        ending_timestamp: Timestamp | None = None,
        allow_out_of_range: bool = False,
        require_change_data_feed: bool | None = None,
        schema_version: int | None = None,
        columns: Sequence[str] | None = None,
        where: str | Expression | pc.Expression | None = None,
    ) -> ChangeFeed:
        """The rows that a range of versions changed. See `DeltaTable.changes`."""
        return self.table().changes(
            starting_version=starting_version,
            ending_version=ending_version,
            starting_timestamp=starting_timestamp,
            ending_timestamp=ending_timestamp,
            allow_out_of_range=allow_out_of_range,
            require_change_data_feed=require_change_data_feed,
            schema_version=schema_version,
            columns=columns,
            where=where,
        )

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """The table's commits, newest first."""
        return self.table().history(limit)


def resolve_env(value: str) -> str:
    """The value of an `EnvVar` that Dagster has not resolved, because the object is used outside of a run."""
    return value.get_value() or "" if isinstance(value, dg.EnvVar) else value


def resolve_options(options: Mapping[str, object]) -> dict[str, object]:
    """`resolve_env` for every text."""
    return {name: resolve_env(value) if isinstance(value, str) else value for name, value in options.items()}
