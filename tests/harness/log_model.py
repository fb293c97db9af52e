"""Action reconciliation in plain Python, one dict entry a file: slow, obvious, and what replay is tested against
(PROTOCOL, "Action Reconciliation")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

from delta_orch.protocol.actions import (
    Action,
    Add,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
)

FileKey = tuple[str, str | None]
"""Canonical path and deletion vector id."""


def one_spelling(path: str) -> str:
    """Of the paths that name one file: decoded, without detours, and an absolute one of a local file as `/x`."""
    for prefix in ("file://localhost/", "file:///", "file:/"):
        if path.startswith(prefix):
            path = "/" + path.removeprefix(prefix)
    scheme, separator, place = unquote(path).rpartition("://")
    parts: list[str] = []
    for part in place.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return f"{scheme}{separator}{'/' * place.startswith('/')}{'/'.join(parts)}"


def file_key(action: Add | Remove) -> FileKey:
    """The primary key of a logical file."""
    vector = action.deletion_vector
    return one_spelling(action.path), None if vector is None else vector.unique_id


@dataclass(slots=True)
class LogModel:
    """The state of a table after the commits applied so far."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domain_metadata: dict[str, DomainMetadata] = field(default_factory=dict)
    adds: dict[FileKey, Add] = field(default_factory=dict)
    tombstones: dict[FileKey, Remove] = field(default_factory=dict)

    def apply(self, commit: Iterable[Action]) -> None:
        """One commit: its removes first, then its adds."""
        actions = list(commit)
        for action in actions:
            match action:
                case Protocol():
                    self.protocol = action
                case Metadata():
                    self.metadata = action
                case Txn(app_id):
                    self.txns[app_id] = action
                case DomainMetadata(domain):
                    self.domain_metadata[domain] = action
                case Remove():
                    self.adds.pop(file_key(action), None)
                    self.tombstones[file_key(action)] = action
        for action in actions:
            if isinstance(action, Add):
                self.tombstones.pop(file_key(action), None)
                self.adds[file_key(action)] = action

    def actions(self) -> list[Action]:
        """What a checkpoint of this state holds."""
        header: list[Action | None] = [self.protocol, self.metadata]
        return [
            *(a for a in header if a is not None),
            *self.txns.values(),
            *self.domain_metadata.values(),
            *self.adds.values(),
            *self.tombstones.values(),
        ]
