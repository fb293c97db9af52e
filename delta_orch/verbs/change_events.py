"""`Changes`: the settings that turn rows into change events, from a call or from a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, get_args
from typing import Literal as OneOf

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import ensure_sequence_of_names
from delta_orch.expressions.nodes import Expression
from delta_orch.protocol.table_properties import parse_interval_ms

Envelope = OneOf["change_feed", "debezium"]
"""The envelopes that rows may have. See `change_envelopes`."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The settings of change events. All except the last three are settings of a step with `write="cdc"`.

    Attributes:
        sequence_by: The columns that order the events of a key. The first column counts most. Their values are not
            null. The table stores them to find the newer row.
        delete_when: A predicate over the rows. A row for which it is true deletes its key.
        except_columns: Columns of the rows that the table does not store.
        scd: 1 keeps the newest row of each key, 2 keeps all versions.
        full_snapshot: The rows are complete at their sequence, so missing keys are deleted. All rows have the same
            sequence. If `within` is about the sequence, each part has its own.
        envelope: The envelope that the rows are wrapped in.
        tombstone_retention: How long `scd=1` remembers deleted keys, as text in the form of
            `delta.logRetentionDuration`.
        keys: The columns that identify a row. Their values are not null.
        within: Predicates. Exactly one must be true for each row. If they are about keys, a snapshot is complete only
            for the keys inside them. Otherwise they are about the sequence.
        corrects: An event replaces another event with its key and sequence, as in a redo.
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

    def __post_init__(self) -> None:
        if isinstance(self.sequence_by, Iterator):
            # It gives its names once, and they are asked for more than once.
            object.__setattr__(self, "sequence_by", tuple(self.sequence_by))

    @property
    def sequence(self) -> tuple[str, ...]:
        """Return `sequence_by` as a list."""
        return (self.sequence_by,) if isinstance(self.sequence_by, str) else tuple(self.sequence_by)

    @property
    def deletes(self) -> bool:
        """Whether an event can delete a key."""
        return self.delete_when is not None or self.full_snapshot or self.envelope is not None

    @property
    def retention(self) -> timedelta:
        """Return `tombstone_retention` as a timedelta. Raises InvalidRequestError if it is not a duration."""
        text = self.tombstone_retention
        try:
            time = timedelta(milliseconds=parse_interval_ms(text)) if isinstance(text, str) else text
        except ValueError:
            time = timedelta(-1)
        if not isinstance(time, timedelta) or time < timedelta(0):
            raise InvalidRequestError(
                f"tombstone_retention is {text!r}", remedy="Pass a timedelta, or a text such as 'interval 30 days'"
            )
        return time

    def ensure_sound(self, *, has_keys: bool = True) -> None:
        """Check the settings that need neither rows nor a table.

        Raises:
            InvalidRequestError: A setting is invalid, or settings contradict each other.
        """
        for names, what in ((self.keys, "keys"), (self.sequence, "sequence_by")):
            ensure_sequence_of_names(names, what)
            if not names and (has_keys or what != "keys"):
                raise InvalidRequestError(f"{what} has no column", remedy=f"Pass at least one, such as {what}=['id']")
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
                cause="The envelope already marks the rows that delete their key",
                remedy="Leave delete_when and full_snapshot out",
            )
        if isinstance(self.delete_when, str):
            from delta_orch.expressions.parse import parse_expression

            parse_expression(self.delete_when)
        assert self.retention is not None


SETTINGS = tuple(field.name for field in fields(Changes) if field.name not in ("keys", "within", "corrects"))
"""The names of the settings of a step for change events."""


def parse_changes(write: str | None, given: Mapping[str, Any]) -> Changes | None:
    """Return the step's settings for change events. None if its rows are not change events.

    Args:
        given: The values of `SETTINGS` by name. None or False means that a setting is missing.

    Raises:
        InvalidRequestError: As `Changes.ensure_sound`. Or a setting is for `write="cdc"`, but the step writes in
            another mode.
    """
    settings = {name: given[name] for name in SETTINGS if given.get(name) not in (None, False, ())}
    if write != "cdc":
        if settings:
            raise InvalidRequestError(
                f"{next(iter(settings))} is for write='cdc', but this step has write={write!r}",
                remedy="Leave it out, or pass write='cdc' with merge_keys and sequence_by",
            )
        return None
    if "sequence_by" not in settings:
        raise InvalidRequestError(
            "write='cdc' needs sequence_by",
            cause="It decides which of two rows of a key is newer",
            remedy="Pass for example sequence_by='updated_at'",
        )
    changes = Changes(**settings)
    changes.ensure_sound(has_keys=False)
    return changes
