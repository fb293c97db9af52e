"""A folder of tables, and runs of Dagster on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from delta_orch.dagster import DeltaLakeIOManager
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import DeltaError


class Lake:
    """A folder of tables, an ephemeral instance, and runs on them."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.root = root
        self.instance = dg.DagsterInstance.ephemeral()
        self.io_manager = DeltaLakeIOManager(root_uri=str(root), **config)

    def run(
        self, *assets: Any, partition: str | None = None, span: tuple[str, str] | None = None, **extras: Any
    ) -> Any:
        tags = {}
        if span is not None:
            tags = {"dagster/asset_partition_range_start": span[0], "dagster/asset_partition_range_end": span[1]}
        return dg.materialize(
            assets,
            instance=self.instance,
            resources={"io_manager": self.io_manager},
            partition_key=partition,
            tags=tags,
            **extras,
        )

    def fails(self, *assets: Any, **extras: Any) -> BaseException:
        """The error the step of a run ends with, or what keeps its definitions from loading."""
        try:
            result = self.run(*assets, raise_on_error=False, **extras)
        except DeltaError as refused:
            return refused
        assert not result.success
        with pytest.raises(Exception) as caught:
            self.run(*assets, **extras)
        raised: BaseException | None = caught.value
        while raised is not None and not type(raised).__module__.startswith("delta_orch"):
            raised = raised.__cause__
        assert raised is not None, caught.value
        return raised

    def logs(self, result: Any) -> str:
        return "\n".join(str(entry) for entry in self.instance.all_logs(result.run_id))

    def table(self, *path: str) -> DeltaTable:
        return DeltaTable(self.root.joinpath(*path))

    def rows(self, *path: str) -> list[dict[str, Any]]:
        return sorted(self.table(*path).snapshot().scan().to_arrow().to_pylist(), key=repr)


def metadata_of(result: Any, key: str) -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node(key.replace("/", "__"))
    return {name: value.value for name, value in event.metadata.items()}
