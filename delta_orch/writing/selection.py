"""`Selection`: the files out of which a write takes rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from delta_orch.expressions.nodes import Expression


class Selection(NamedTuple):
    """Files of a snapshot, columns `plan.REMOVED_FILE_COLUMNS`, out of which rows are taken.

    Attributes:
        whole: Files all of whose rows leave.
        partial: Files that may also hold other rows.
        leaving: The rows that leave, in terms of the table as the write leaves it; None for all of them.
    """

    whole: pa.Table
    partial: pa.Table
    leaving: Expression | None

    @property
    def files(self) -> pa.Table:
        return pa.concat_tables([self.whole, self.partial])
