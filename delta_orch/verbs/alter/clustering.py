"""Clustering columns (PROTOCOL, "Clustered Table")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from delta_orch.protocol.schema_edit import ColumnPath, Path, quote_path, resolve_path
from delta_orch.table.clustering import (
    CLUSTERING_DOMAIN,
    ensure_can_cluster,
    logical_path,
    physical_columns,
    serialize_clustering,
)
from delta_orch.verbs.alter.draft import Draft


@dataclass(frozen=True, slots=True)
class ClusterBy:
    """Cluster by these columns from now on; by none, the table stays as it lies."""

    columns: Sequence[ColumnPath]
    operation = "CLUSTER BY"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError."""
        paths = [resolve_path(draft.schema, column) for column in self.columns]
        columns = physical_columns(draft.schema, paths)
        if not columns and draft.clustering is None:
            return draft
        ensure_can_cluster(draft.table, columns)
        return replace(
            draft,
            clustering=columns,
            features=draft.features | {"clustering"},
            domains={**draft.domains, CLUSTERING_DOMAIN: serialize_clustering(columns)},
            relies_on_files=draft.relies_on_files or bool(columns),
        )

    def parameters(self, before: Draft, after: Draft) -> dict[str, Any]:
        return {
            "oldClusteringColumns": _listed(before, before.clustering),
            "newClusteringColumns": _listed(after, after.clustering),
        }


def _listed(draft: Draft, columns: Sequence[Path] | None) -> str:
    return ",".join(quote_path(logical_path(draft.schema, path) or path) for path in columns or ())
