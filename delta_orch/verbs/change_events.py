"""`Changes`: how rows are change events, as a call or the settings of a step say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, get_args
from typing import Literal as OneOf

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import ensure_sequence_of_names
from delta_orch.expressions.nodes import Expression
from delta_orch.protocol.table_properties import parse_interval_ms

Envelope = OneOf["change_feed", "debezium"]
"""The envelope of the rows; see `change_envelopes`."""


@dataclass(frozen=True, slots=True)
class Changes:
    """How rows are change events. All except the last three are settings of a step with `write="cdc"`.

    Attributes:
        sequence_by: The columns that order the events of a key, the first before the others. Not null. The table has
            them, because they tell which row is newer.
        delete_when: A predicate over the rows: true where a row deletes its key.
        except_columns: Columns of the rows that the table does not get.
        scd: 1 keeps the newest row of each key, 2 all versions.
        full_snapshot: The rows are all there are at their sequence, so what is missing is deleted. All have one
            sequence; or one in each of `within`, where those are about the sequence.
        envelope: What the rows are wrapped in.
        tombstone_retention: How long `scd=1` remembers deleted keys; a text as for `delta.logRetentionDuration`.
        keys: The columns that identify what changes. Not null.
        within: Predicates, one of which must be true for each row. No two are true for the same row. They are about
            keys, and a snapshot then has the keys that lie in them; or about the sequence.
        corrects: An event takes the place of another one of its key and sequence, as in a redo.
    """

    sequence_by: str | Sequence[str]
    delete_when: str | Expression | None = None
    except_columns: Sequence[str] = ()
    scd: int = 1
    full_snapshot: bool = False
    envelope: Envelope | None = None
    tombstone_retention: timedelta | str = timedelta(days=30)
    keys: Sequence[str] = ()
    within: tuple[Expression, ...] = ()
    corrects: bool = False

    @property
    def sequence(self) -> tuple[str, ...]:
        """`sequence_by` as a list."""
        return (self.sequence_by,) if isinstance(self.sequence_by, str) else tuple(self.sequence_by)

    @property
    def deletes(self) -> bool:
        """Whether an event can delete a key."""
        return self.delete_when is not None or self.full_snapshot or self.envelope is not None

    @property
    def retention(self) -> timedelta:
        """Raises InvalidRequestError: `tombstone_retention` is no time."""
        text = self.tombstone_retention
        try:
            time = timedelta(milliseconds=parse_interval_ms(text)) if isinstance(text, str) else text
        except ValueError:
            time = timedelta(-1)
        if not isinstance(time, timedelta) or time < timedelta(0):
            raise InvalidRequestError(
                f"tombstone_retention is {text!r}", remedy="Give a timedelta, or a text such as 'interval 30 days'"
            )
        return time

    def ensure_sound(self, *, has_keys: bool = True) -> None:
        """Check what needs neither rows nor table.

        Raises:
            InvalidRequestError: A part is invalid, or the parts contradict each other.
        """
        for names, what in ((self.keys, "keys"), (self.sequence, "sequence_by")):
            ensure_sequence_of_names(names, what)
            if not names and (has_keys or what != "keys"):
                raise InvalidRequestError(f"{what} names no column", remedy=f"Name one, such as {what}=['id']")
        ensure_sequence_of_names(self.except_columns, "except_columns")
        if self.scd not in (1, 2):
            raise InvalidRequestError(f"scd is {self.scd!r}", remedy="scd=1 keeps the newest rows, scd=2 all versions")
        if self.envelope not in (None, *get_args(Envelope)):
            raise InvalidRequestError(
                f"There is no envelope {self.envelope!r}", remedy=f"Use one of {', '.join(get_args(Envelope))}"
            )
        if not isinstance(self.full_snapshot, bool):
            raise InvalidRequestError("full_snapshot is not True or False", cause=f"It is {self.full_snapshot!r}")
        if self.envelope is not None and (self.delete_when is not None or self.full_snapshot):
            raise InvalidRequestError(
                f"envelope={self.envelope!r} with delete_when or full_snapshot",
                cause="The envelope says which rows delete their key",
                remedy="Leave delete_when and full_snapshot out",
            )
        if isinstance(self.delete_when, str):
            from delta_orch.expressions.parse import parse_expression

            parse_expression(self.delete_when)
        assert self.retention is not None


SETTINGS = tuple(field.name for field in fields(Changes) if field.name not in ("keys", "within", "corrects"))
"""The names of what a step may say of change events."""


def parse_changes(write: str | None, given: Mapping[str, Any]) -> Changes | None:
    """The step's settings for change events; None if its rows are not change events.

    Args:
        given: `SETTINGS` by name; None or False if a setting is missing.

    Raises:
        InvalidRequestError: As `Changes.ensure_sound`; or a setting is for `write="cdc"`, and this is another one.
    """
    settings = {name: given[name] for name in SETTINGS if given.get(name) not in (None, False, ())}
    if write != "cdc":
        if settings:
            raise InvalidRequestError(
                f"{next(iter(settings))} is for write='cdc', and here it is {write!r}",
                remedy="Leave it out, or pass write='cdc' with merge_keys and sequence_by",
            )
        return None
    if "sequence_by" not in settings:
        raise InvalidRequestError(
            "write='cdc' needs sequence_by",
            cause="It says which of two rows of a key is newer",
            remedy="Pass for example sequence_by='updated_at'",
        )
    changes = Changes(**settings)
    changes.ensure_sound(has_keys=False)
    return changes
