"""The table as the changes of an alteration leave it, one after the other."""

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
    """Conditions that every row of the table must satisfy before the change is committed.

    Attributes:
        name: What the error calls it.
        condition: The condition in messages to the user.
        violation: The rows that break it, resolved against the schema as the change leaves it.
    """

    name: str
    condition: str
    violation: Expression


@dataclass(frozen=True, slots=True)
class Draft:
    """A table between the version an alteration starts from and the one it will commit.

    Attributes:
        snapshot: Where it starts.
        table: Its configuration so far.
        clustering: Physical paths of the clustering columns; None where the table is not clustered.
        features: Features that the user named.
        domains: Metadata domains to set, by name; None removes one.
        proofs: What the rows must satisfy.
        relies_on_files: The change is only right for the files the snapshot has.
        relies_on_version: The change names the version it will be, so nothing may come in between.
        synced: Identity columns whose high-water marks are to reach the values of the rows.
        unwanted: What no file may hold once the change stands; files that do are rewritten with it.
        mapped_schema: The columns as files name them, where the change ends column mapping.
        widened_schema: The columns with the history of their types, where the change ends type widening.
        truncates: Features whose traces must leave the history as well.
        needs_checkpoint: A checkpoint follows, so that readers without a dropped feature need not read what was before.
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
        operation: `commitInfo.operation`, as the reference implementation calls it.
        apply: The table with the change. Raises kinds of InvalidRequestError where it cannot be.
        parameters: `commitInfo.operationParameters`, from the table before and after.
    """

    operation: str
    apply: Callable[[Draft], Draft]
    parameters: Callable[[Draft, Draft], dict[str, object]]


def not_null_proof(schema: StructType, path: Path) -> RowProof:
    """The condition that rows must satisfy before a column becomes NOT NULL.

    Raises:
        InvalidRequestError: The column lies inside an array or a map, where no predicate can look.
    """
    for length in range(1, len(path)):
        if not isinstance(type_at(schema, path[:length]), StructType):
            raise InvalidRequestError(
                f"{quote_path(path)} cannot become NOT NULL",
                cause=f"It lies inside {quote_path(path[:length])}, an array or a map",
                remedy="Define it so when the table is created",
                column=".".join(path),
            )
    return RowProof(
        f"NOT NULL constraint on {quote_path(path)}", f"{quote_path(path)} IS NOT NULL", IsNull(Column(path))
    )
