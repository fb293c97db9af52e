"""Which columns a table is clustered by (PROTOCOL, "Clustered Table")."""

from __future__ import annotations

from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.schema_edit import Path
from delta_orch.table.clustering import CLUSTERING_DOMAIN, parse_clustering
from delta_orch.table.registry import supports


def read_clustering(snapshot: Snapshot) -> tuple[Path, ...] | None:
    """The clustering columns of a snapshot, physical paths. The checkpoint is only read where the table may have any.

    Returns: None where the table is not clustered.

    Raises:
        ProtocolViolationError: The domain cannot be understood.
    """
    if not supports(snapshot.protocol, "clustering"):
        return None
    return parse_clustering(snapshot.domain_metadata.get(CLUSTERING_DOMAIN))
