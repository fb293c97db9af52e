"""What a commit would have been: the answer to a dry run."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson
import pyarrow as pa

from delta_orch.protocol.action_json import parse_action
from delta_orch.protocol.actions import Action


@dataclass(frozen=True, slots=True)
class CommitPreview:
    """A commit that was made ready and not written.

    Attributes:
        version: The version it would have been, had nobody else committed.
        content: Its bytes, one action a line.
        adds: Files it would add, columns of `file_columns.ADD_SCHEMA`. They do not exist: what was written to learn
            about them (sizes, statistics, violated constraints) was outside the table and is deleted.
        removes: Files it would remove, columns of `file_columns.ADD_SCHEMA` as far as they are known.
    """

    version: int
    content: bytes = field(repr=False)
    adds: tuple[pa.Table, ...] = field(repr=False, compare=False)
    removes: tuple[pa.Table, ...] = field(repr=False, compare=False)

    def actions(self) -> list[Action]:
        """Every action, as an object each; for thousands of files take `adds` and `removes`."""
        parsed = (parse_action(orjson.loads(line)) for line in self.content.splitlines())
        return [action for action in parsed if action is not None]
