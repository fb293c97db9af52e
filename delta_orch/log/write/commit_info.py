"""What a commit says about itself: `commitInfo` (PROTOCOL, "Commit Provenance Information")."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from delta_orch._version import ENGINE_INFO
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.commit_json import ensure_json, ensure_mapping, json_parameters
from delta_orch.protocol.actions import CommitInfo
from delta_orch.table.row_tracking import PRESERVED_TAG


@dataclass(slots=True)
class Provenance:
    """What is the same in every attempt of a transaction.

    Attributes:
        operation, parameters: As given; `parameters` become strings.
        user_metadata, more: The caller's own. They never replace a key of this package.
        own_metrics: Operation metrics of the caller; `metrics` of the same name win.
        metrics: Operation metrics of the verb.
        rows_preserved: False where rows were copied without their ids and commit versions.
        txn_id: Identifies the transaction's commit, whatever became of the request that wrote it.

    Raises:
        InvalidRequestError: JSON cannot hold `more` or `own_metrics`, or `user_metadata` is not text.
    """

    operation: str
    parameters: Mapping[str, object]
    user_metadata: str | None = None
    more: Mapping[str, object] = field(default_factory=dict)
    own_metrics: Mapping[str, int | str] = field(default_factory=dict)
    metrics: Mapping[str, int | str] = field(default_factory=dict)
    rows_preserved: bool = True
    txn_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def __post_init__(self) -> None:
        if self.user_metadata is not None and not isinstance(self.user_metadata, str):
            raise InvalidRequestError(
                f"user_metadata must be text, not {self.user_metadata!r:.100}",
                remedy="Serialize it, for example as JSON",
            )
        ensure_json({"userMetadata": self.user_metadata}, "user_metadata")
        self.more = ensure_json(self.more, "commit_info")
        self.own_metrics = dict(ensure_mapping(self.own_metrics, "operation_metrics"))
        ensure_json(json_parameters(self.own_metrics), "operation_metrics")
        self.parameters = json_parameters(self.parameters)

    @property
    def all_metrics(self) -> dict[str, int | str]:
        return {**self.own_metrics, **self.metrics}

    def commit_info(
        self,
        *,
        now_ms: int,
        read_version: int | None,
        isolation_level: str,
        is_blind_append: bool,
        in_commit_timestamp_ms: int | None,
        tracks_rows: bool,
    ) -> CommitInfo:
        """The action, which is the first of every commit."""
        own = {
            "inCommitTimestamp": in_commit_timestamp_ms,
            "timestamp": now_ms,
            "operation": self.operation,
            "operationParameters": self.parameters,
            "operationMetrics": json_parameters(self.all_metrics),
            "readVersion": read_version,
            "isolationLevel": isolation_level,
            "isBlindAppend": is_blind_append,
            "engineInfo": ENGINE_INFO,
            "userMetadata": self.user_metadata,
            "tags": self._tags() if tracks_rows else None,
            "txnId": self.txn_id,
        }
        # A time that the caller made up would be taken for the commit's.
        more = {key: value for key, value in self.more.items() if key != "inCommitTimestamp"}
        return CommitInfo({**more, **{key: value for key, value in own.items() if value is not None}})

    def _tags(self) -> dict[str, object]:
        tags = self.more.get("tags")
        own = {PRESERVED_TAG: "true" if self.rows_preserved else "false"}
        return {**(tags if isinstance(tags, dict) else {}), **own}
