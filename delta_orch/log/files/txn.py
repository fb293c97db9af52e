"""The idempotency key of a commit, and what it means given those that the table has recorded (PROTOCOL, "Transaction
Identifiers")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_orch.errors import ConcurrentTransactionError
from delta_orch.expressions.nodes import Expression
from delta_orch.protocol.table_properties import ensure_no_credential

if TYPE_CHECKING:
    from delta_orch.log.files.recorded_txns import TxnVersions


@dataclass(frozen=True, slots=True)
class TxnId:
    """`(app_id, version)`: the commit that carries it happens at most once (PROTOCOL, "Transaction Identifiers").

    A table that has recorded a version ≥ `version` for `app_id` takes no second commit: the transaction ends as
    `skipped` and adds nothing. With a `scope`, a predicate over partition columns, it guards only the rows inside:
    a commit may carry many of them, and those that are stale leave their partitions out of it while the others commit.

    With `ordered`, the same version may be committed again, even at the same time; only a later version excludes it.

    `follows` makes it a compare-and-set, for cursors: the version that must be recorded now, -1 for none at all; None
    asks for nothing. Where another is recorded (and it is not stale), the commit ends in ConcurrentTransactionError.

    With `is_unit` the id names a unit of work (`pipeline.unit`). Each new data file of the commit has the tag
    `delta_orch.unit` with this id (`files.unit_tag`). With scopes, a file is of the unit in whose scope it lies. A
    commit with several units without scopes tags no file.

    With `replaces` the rows that the unit wrote before leave in the same commit, in `append` and in a dynamic partition
    overwrite. Other verbs say by a predicate or by keys what they replace.
    """

    app_id: str
    version: int
    scope: Expression | None = None
    follows: int | None = None
    ordered: bool = False
    is_unit: bool = False
    replaces: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidPropertyError: The name holds a credential, and the table would keep it."""
        if isinstance(self.app_id, str):
            ensure_no_credential(self.app_id, "name of a transaction")

    def is_recorded_by(self, version: int) -> bool:
        """Whether a recorded version makes this one's commit a repetition."""
        return version > self.version if self.ordered else version >= self.version


UNIT_PREFIXES = ("dagster:", "dagster-op:", "airflow:")
"""What the names of the units of work of both orchestrators begin with (`pipeline.unit`)."""


def is_unit_name(app_id: str) -> bool:
    """Whether an application id names a unit of work."""
    return app_id.startswith(UNIT_PREFIXES)


Recorded = Mapping[str, int | None]
"""App id → recorded version; None, or missing, where there is none."""


def gone_with_rows(recorded: TxnVersions) -> dict[str, int]:
    """Of what a table has recorded the ids that say which rows it has: the cursors of incremental steps, and the units
    of work. A verb that restores older rows resets these ids as well."""
    return recorded.named(("cdc:", *UNIT_PREFIXES))


def stale_among(txns: Sequence[TxnId], recorded: Recorded) -> tuple[TxnId, ...]:
    """The ids that are recorded at the same or a later version."""
    versions = ((txn, recorded.get(txn.app_id)) for txn in txns)
    return tuple(txn for txn, version in versions if version is not None and txn.is_recorded_by(version))


def is_wholly_stale(txns: Sequence[TxnId], stale: Sequence[TxnId]) -> bool:
    """Whether nothing of the write is left to do: a key for the whole write is stale, or every scoped one is."""
    return bool(stale) and (any(t.scope is None for t in stale) or len(stale) == len(txns))


def ensure_follows(txns: Sequence[TxnId], recorded: Recorded, version: int | None) -> None:
    """Check what `TxnId.follows` asks for.

    Args:
        version: The table version that has recorded them, None for a table that does not exist.

    Raises:
        ConcurrentTransactionError: Another version is recorded.
    """
    for txn in txns:
        recorded_version = recorded.get(txn.app_id)
        if txn.follows is not None and (-1 if recorded_version is None else recorded_version) != txn.follows:
            raise ConcurrentTransactionError(
                f"The transaction of {txn.app_id!r} follows version {txn.follows}, but {recorded_version} is recorded",
                cause="Another run has moved on in the meantime",
                remedy="Run the operation again: it will start from what is recorded now",
                winning_version=version,
                app_ids=[txn.app_id],
            )
