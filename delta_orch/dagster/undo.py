"""An op that takes back what a unit or a run wrote."""

# No postponed annotations in this file: Dagster reads them as they are.

from collections.abc import Callable
from typing import Any

import dagster as dg
from pydantic import Field

from delta_orch.arguments import checked
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.run import read_run
from delta_orch.errors import InvalidRequestError


class UndoConfig(dg.Config):
    """The units to take back: one of `unit` and `run`.

    Attributes:
        unit: A unit of `table.units()`.
        run: The id of a run: all units that it wrote last.
        dry_run: Count the rows and leave them.
    """

    unit: str | None = Field(default=None, description="A unit of table.units().")
    run: str | None = Field(default=None, description="The id of a run: all units that it wrote last.")
    dry_run: bool = Field(default=False, description="Count the rows and leave them.")


@checked
def build_delta_undo_op(
    table: DeltaTableResource | str, *, name: str = "delta_undo", **op_arguments: Any
) -> dg.OpDefinition:
    """An op that removes exactly the rows that a unit or a run wrote (`DeltaTable.undo`).

    ```python
    @dg.job
    def undo_flights():
        build_delta_undo_op(flights)()
    ```

    Its config names `unit` or `run`, and with `dry_run: true` it only counts. Dagster goes on to show the partitions as
    materialized.

    Args:
        table: A resource, or the key of one.
        name: Of the op.
        op_arguments: As `dg.op` takes them.

    Raises:
        InvalidRequestError: When it runs: there is no such unit, or not exactly one of `unit` and `run` is given.
        RedoNotPossibleError: When it runs: the rows cannot be told from others. The table is as before.
    """
    keys = {table} if isinstance(table, str) else set[str]()

    def undo(context: dg.OpExecutionContext, config: UndoConfig) -> None:
        resource = getattr(context.resources, table) if isinstance(table, str) else table
        if not isinstance(resource, DeltaTableResource):
            raise InvalidRequestError(
                f"The resource {table!r} is not a DeltaTableResource", cause=f"It is a {type(resource).__name__}"
            )
        about = read_run(context).user_metadata("")
        result = resource.table().undo(unit=config.unit, run=config.run, dry_run=config.dry_run, user_metadata=about)
        verb = "Would remove" if config.dry_run else "Removed"
        context.log.info("%s %s rows of %s", verb, f"{result.rows_removed:,}", ", ".join(result.units))
        context.add_output_metadata(
            {
                "delta/units": dg.JsonMetadataValue(list(result.units)),
                "delta/rows_removed": result.rows_removed,
                **({} if config.dry_run else {"delta/version": result.version}),
            }
        )

    make: Callable[..., dg.OpDefinition] = dg.op(
        name=name, required_resource_keys={*keys, *op_arguments.pop("required_resource_keys", ())}, **op_arguments
    )
    return make(undo)
