"""The draft of an alteration: the table after each of its changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Column, Expression, IsNull
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.schema_edit import Path, quote_path, type_at
from delta_orch.protocol.types import StructType
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.protocol_upgrade import FileTrait


class RowProof(NamedTuple):
    """A condition that every row of the table must satisfy before the change is committed.

    Attributes:
        name: The name of the condition in errors.
        condition: The condition as text, for messages.
        violation: A predicate that is true for rows that violate the condition, resolved against the schema after the
            change.
    """

    name: str
    condition: str
    violation: Expression


@dataclass(frozen=True, slots=True)
class Draft:
    """A table between the version an alteration starts from and the one it will commit.

    Attributes:
        snapshot: The version that the alteration starts from.
        table: The configuration after the changes so far.
        clustering: Physical paths of the clustering columns. None if the table is not clustered.
        features: Table features that the user requested.
        domains: Metadata domains to set, by name. The value None removes a domain.
        proofs: Conditions that the existing rows must satisfy.
        relies_on_files: Whether the change is only valid for the files of the snapshot.
        relies_on_version: Whether the change records the version of its own commit, so that no other commit may come
            first.
        synced: Identity columns whose high-water marks move to the values of the rows.
        unwanted: Traits that no file may have after the change. Files with one of them are rewritten.
        mapped_schema: The columns before column mapping ends, with their names in files. None if it does not end.
        widened_schema: The columns before type widening ends, with their older types. None if it does not end.
        truncates: Features whose traces the history must lose as well.
        needs_checkpoint: Whether a checkpoint follows, so that readers without a dropped feature need no older commits.
    """

    snapshot: Snapshot
    table: TableConfiguration
    clustering: tuple[Path, ...] | None
    features: frozenset[str] = frozenset()
    domains: Mapping[str, str | None] = field(default_factory=dict)
    proofs: tuple[RowProof, ...] = ()
    relies_on_files: bool = False
    relies_on_version: bool = False
    synced: tuple[str, ...] = ()
    unwanted: frozenset[FileTrait] = frozenset()
    mapped_schema: StructType | None = None
    widened_schema: StructType | None = None
    truncates: frozenset[str] = frozenset()
    needs_checkpoint: bool = False

    @classmethod
    def of(cls, snapshot: Snapshot) -> Draft:
        return cls(snapshot, snapshot.configuration, snapshot.clustering)

    @property
    def schema(self) -> StructType:
        return self.table.schema

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.table.configuration

    def with_configuration(self, configuration: Mapping[str, str]) -> Draft:
        return replace(self, table=self.table.with_properties(configuration))

    def with_schema(self, schema: StructType) -> Draft:
        return replace(self, table=self.table.with_schema(schema))

    def with_proof(self, proof: RowProof) -> Draft:
        return replace(self, proofs=(*self.proofs, proof))


class Change(NamedTuple):
    """One step of an alteration.

    Attributes:
        operation: `commitInfo.operation`, with the name that the reference implementation uses.
        apply: Applies the change to a draft. Raises a subclass of InvalidRequestError if the change is impossible.
        parameters: Makes `commitInfo.operationParameters` from the draft before and after the change.
    """

    operation: str
    apply: Callable[[Draft], Draft]
    parameters: Callable[[Draft, Draft], dict[str, object]]


def not_null_proof(schema: StructType, path: Path) -> RowProof:
    """Return the condition that rows must satisfy before a column becomes NOT NULL.

    Raises:
        InvalidRequestError: The column lies inside an array or a map, and a predicate cannot check it.
    """
    for length in range(1, len(path)):
        if not isinstance(type_at(schema, path[:length]), StructType):
            raise InvalidRequestError(
                f"{quote_path(path)} cannot become NOT NULL",
                cause=f"The column is inside {quote_path(path[:length])}, which is an array or a map",
                remedy="Define the column as NOT NULL when the table is created",
                column=".".join(path),
            )
    return RowProof(
        f"NOT NULL constraint on {quote_path(path)}", f"{quote_path(path)} IS NOT NULL", IsNull(Column(path))
    )
