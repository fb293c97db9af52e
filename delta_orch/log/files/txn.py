"""The idempotency key of a commit."""

from __future__ import annotations

from dataclasses import dataclass

from delta_orch.expressions.nodes import Expression


@dataclass(frozen=True, slots=True)
class TxnId:
    """`(app_id, version)`: the commit that carries it happens at most once (PROTOCOL, "Transaction Identifiers").

    A table that has recorded a version ≥ `version` for `app_id` takes no second commit: the transaction ends as
    `skipped` and adds nothing. With a `scope`, a predicate over partition columns, it guards only the rows inside:
    a commit may carry many of them, and those that are stale leave their partitions out of it while the others commit.

    With `exact`, only the very same version counts as recorded: another one, higher or lower, is committed and takes
    its place ("it would be valid for the version to decrease", says the protocol).

    `follows` makes it a compare-and-set, for cursors: the version that must be recorded now, -1 for none at all; None
    asks for nothing. Where another is recorded (and it is not stale), the commit ends in ConcurrentTransactionError.
    """

    app_id: str
    version: int
    scope: Expression | None = None
    follows: int | None = None
    exact: bool = False

    def is_recorded_by(self, version: int) -> bool:
        """Whether a recorded version makes this one's commit a repetition."""
        return version == self.version if self.exact else version >= self.version
