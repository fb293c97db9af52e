"""Checks the answers of a catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delta_orch.catalog.names import TableName
from delta_orch.errors import CatalogError

_STAGED_NAME = re.compile(r"(\d{20})\.[0-9A-Za-z-]+\.json")
_MANAGED = "delta.feature.catalogManaged"


@dataclass(frozen=True, slots=True)
class RatifiedCommit:
    """A commit that the catalog has ratified and that may not be published yet."""

    version: int
    file_name: str
    size: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The state of a table in its catalog at one moment (`loadTable`).

    Attributes:
        is_managed: Whether the catalog manages the table's commits.
        latest_version: The newest version. -1 if the log files decide.
        commits: The commits that may not be published yet, by version, without a gap up to the newest.
        allowed_maintenance: The maintenance that clients may do.
    """

    table_uuid: str
    location: str
    etag: str
    properties: Mapping[str, str]
    is_managed: bool
    latest_version: int = -1
    commits: Mapping[int, RatifiedCommit] = field(default_factory=dict)
    allowed_maintenance: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, answer: Mapping[str, Any], name: TableName) -> TableEntry:
        """Parse the answer. Raises CatalogError if it contradicts the specification."""
        try:
            metadata = answer["metadata"]
            properties = {str(key): str(value) for key, value in (metadata.get("properties") or {}).items()}
            is_managed = properties.get(_MANAGED) == "supported"
            commits = {commit.version: commit for commit in map(_parse_commit, answer.get("commits") or ())}
            latest = int(answer["latest-table-version"]) if is_managed else -1
            if is_managed and sorted(commits) != list(range(latest - len(commits) + 1, latest + 1)):
                raise ValueError(f"its commits {sorted(commits)} do not end at version {latest} without a gap")
            return cls(
                str(metadata["table-uuid"]),
                str(metadata["location"]).rstrip("/"),
                str(metadata.get("etag") or ""),
                properties,
                is_managed,
                latest,
                commits if is_managed else {},
                frozenset(map(str, answer.get("allowed-maintenance-operations") or ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise _invalid(f"load {name.uri}", e) from e


def _parse_commit(commit: Mapping[str, Any]) -> RatifiedCommit:
    file_name, version = str(commit["file-name"]), int(commit["version"])
    name_match = _STAGED_NAME.fullmatch(file_name)
    if name_match is None or int(name_match[1]) != version:
        raise ValueError(f"{file_name!r} is not the name of a staged commit of version {version}")
    return RatifiedCommit(version, file_name, int(commit["file-size"]), int(commit["timestamp"]))


@dataclass(frozen=True, slots=True, repr=False)
class VendedCredential:
    """A credential for files below a prefix. `expires_ms` is None if the credential does not expire."""

    prefix: str
    config: Mapping[str, str]
    expires_ms: int | None


def parse_credentials(answer: Mapping[str, Any]) -> list[VendedCredential]:
    """Raises CatalogError."""
    try:
        return [
            VendedCredential(
                str(found["prefix"]).rstrip("/"),
                {str(key): str(value) for key, value in (found.get("config") or {}).items() if value},
                None if found.get("expiration-time-ms") is None else int(found["expiration-time-ms"]),
            )
            for found in answer.get("storage-credentials") or ()
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        # The text of the error may contain a credential.
        raise _invalid("get credentials", None) from None


@dataclass(frozen=True, slots=True)
class StagingTable:
    """A location for a new table, and the requirements for its first commit (`createStagingTable`).

    Attributes:
        required, suggested: Properties, with `delta.feature.<name>` for features. If a value is null, the writer
            chooses it.
    """

    table_id: str
    location: str
    credentials: tuple[VendedCredential, ...] = field(repr=False)
    required: Mapping[str, str | None]
    suggested: Mapping[str, str | None]

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> StagingTable:
        """Raises CatalogError."""
        try:
            protocol = answer["required-protocol"]
            features = {*(protocol.get("reader-features") or ()), *(protocol.get("writer-features") or ())}
            return cls(
                str(answer["table-id"]),
                str(answer["location"]).rstrip("/"),
                tuple(parse_credentials(answer)),
                {**dict(answer["required-properties"]), **{f"delta.feature.{name}": "supported" for name in features}},
                dict(answer.get("suggested-properties") or {}),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise _invalid("create a table", e) from e


def _invalid(what: str, error: Exception | None) -> CatalogError:
    cause = "It lacks a field" if error is None else f"{type(error).__name__}: {error}"
    return CatalogError(
        f"Cannot {what}: the answer of the catalog contradicts its specification",
        cause=cause,
        remedy="Report this to the administrators of the catalog",
    )
