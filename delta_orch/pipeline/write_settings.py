"""The settings of a write, each declared once for the operators of Airflow and the assets and components of Dagster.

An operator, a `DeltaOut`, the metadata of an asset and a component each make a `WriteSettings`. It checks what goes
with which `write`, and `WriteSettings.apply` hands all settings over to a `Step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.audit import Audit, AuditLike, as_audits
from delta_orch.pipeline.unit import OnRedo
from delta_orch.table.schema_evolution import parse_schema_mode
from delta_orch.verbs.change_events import SETTINGS as CHANGE_SETTINGS
from delta_orch.verbs.change_events import Changes, Envelope, parse_changes
from delta_orch.verbs.expect import Expectations

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.step import Step

    AnyStep = TypeVar("AnyStep", bound=Step)

BY_KEYS = ("merge", "cdc")
"""Writes that find rows by `merge_keys`."""


def _setting(meaning: str, default: object = None) -> Any:
    return field(default=default, kw_only=True, metadata={"meaning": meaning})


@dataclass(frozen=True)
class WriteSettings:
    """The settings of a write. `MEANINGS` says what each of them means."""

    table: Any = field(default=None, metadata={"meaning": "The table."})
    write: str | None = field(default=None, metadata={"meaning": "What becomes of the rows that are there."})
    merge_keys: Sequence[str] | None = _setting("The columns that identify a row, for `merge` and `cdc`.")
    sequence_by: str | Sequence[str] | None = _setting("The columns that order the events of a key, for `cdc`.")
    delete_when: str | None = _setting("A predicate, true where a row deletes its key, for `cdc`.")
    except_columns: Sequence[str] | None = _setting("Columns that the table does not get, for `cdc`.")
    scd: Literal[1, 2] | None = _setting("1: the newest row of each key. 2: all versions. For `cdc`.")
    full_snapshot: bool = _setting("The rows are all keys; others are deleted, for `cdc`.", False)
    envelope: Envelope | None = _setting("The envelope of the rows, for `cdc`.")  # noqa: RUF009
    tombstone_retention: str | None = _setting("How long deleted keys are remembered, for `cdc`.")
    partition_by: Sequence[str] | None = _setting("The partition columns of a new table; `[]` for none.")
    properties: Mapping[str, str] | None = _setting("The properties of a new table (`delta.*`).")
    schema_mode: str | None = _setting("`merge` or `overwrite`: how the columns of the table follow those of the rows.")
    audit: Sequence[AuditLike] | Mapping[str, object] = _setting(
        "What must hold before the commit: predicates, or name → a predicate or the arguments of an `Audit`.", ()
    )
    expect: Mapping[str, object] | None = _setting('Rules for each row: name → `{"rule": …, "action": …}`.')
    max_quarantined: int | float | None = _setting(
        "The most rows in quarantine (int), or their greatest share (float)."
    )
    quarantine: str | None = _setting("The table of quarantined rows. None: `<table>_quarantine`.")
    unit_column: str | None = _setting(
        "A text column that is filled with the unit of each row. A redo finds the rows by it, also after compaction."
    )
    on_redo: OnRedo = _setting(  # noqa: RUF009
        "What a redo does. replace: its new rows take the place of those that the unit wrote. keep: these stay. "
        "add: the new rows stand beside them.",
        "replace",
    )
    exactly_once: bool = _setting("False: every attempt writes, and no unit is recorded.", True)

    @classmethod
    def of(cls, arguments: Mapping[str, Any], **more: Any) -> Self:
        """The settings among named arguments."""
        names = {one.name for one in fields(cls)}
        return cls(**{**{name: value for name, value in arguments.items() if name in names}, **more})

    @property
    def changes(self) -> Changes | None:
        """How the rows are change events; None if they are not. Raises InvalidRequestError, as `parse_changes`."""
        return parse_changes(self.write, self._change_settings)

    @property
    def _change_settings(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in CHANGE_SETTINGS}

    @property
    def audits(self) -> tuple[Audit, ...]:
        """`audit` as a list. Raises InvalidRequestError, as `as_audits`."""
        return as_audits(self.audit or ())

    @property
    def rules(self) -> Expectations | None:
        """`expect` with `max_quarantined`. Raises InvalidRequestError, as `Expectations.of`."""
        return Expectations.of(self.expect, self.max_quarantined)

    def ensure_sound(self, writes: Sequence[str | None]) -> None:
        """Check what needs neither rows nor table.

        Args:
            writes: The possible values of `write`.

        Raises:
            InvalidRequestError: A value is none of the possible ones, or is from an earlier release; or settings do not
                go together.
        """
        refuse_old_names([self.write])
        ensure_choice("write", self.write, writes)
        if (self.write in BY_KEYS) != bool(self.merge_keys):
            raise InvalidRequestError(
                "merge_keys go together with write='merge' or write='cdc'",
                cause=f"write is {self.write!r}, and merge_keys is {self.merge_keys!r:.100}",
                remedy="Name the columns that identify a row, and pass write='merge' or write='cdc'",
            )
        self.ensure_unit_column()
        self.ensure_parsable()

    def ensure_parsable(self) -> None:
        """Raises InvalidRequestError: The settings of change events, audits, rules or `schema_mode` are invalid."""
        parse_changes(self.write, self._change_settings)
        parse_schema_mode(self.schema_mode)
        as_audits(self.audit or ())
        Expectations.of(self.expect, self.max_quarantined)

    def ensure_unit_column(self) -> None:
        """Raises InvalidRequestError: There is a unit column, and the write finds rows by their keys."""
        if self.unit_column is not None and self.write in BY_KEYS:
            raise InvalidRequestError(
                f"unit_column is not for write={self.write!r}",
                cause="A redo merges the rows again, by their keys",
                remedy="Leave unit_column out",
            )

    def apply(self, step: AnyStep, quarantine: DeltaTable | None = None) -> AnyStep:
        """A step with these settings. Its table, its mode and its attempt stay.

        Args:
            quarantine: The table at the location `quarantine`. By default it has the options of the step's table.
        """
        if quarantine is None and self.quarantine is not None:
            quarantine = step.table.quarantine(self.quarantine)
        return replace(
            step,
            on_redo=self.on_redo,
            unit_column=self.unit_column,
            merge_keys=tuple(self.merge_keys or ()),
            changes=self.changes,
            schema_mode=parse_schema_mode(self.schema_mode),
            audits=self.audits,
            expect=self.rules,
            quarantine=quarantine,
            options={**step.options, "partition_by": self.partition_by, "properties": self.properties},
        )


MEANINGS = {one.name: one.metadata["meaning"] for one in fields(WriteSettings)}
SETTINGS = tuple(name for name in MEANINGS if name != "table")
"""The names of the settings."""

OLD_NAMES: Mapping[str, str] = {
    "mode": "write",
    "table_properties": "properties",
    "partition_overwrite": "write='overwrite_partitions'",
    "partition_overwrite_mode": "write='overwrite_partitions'",
    "idempotency": "on_redo='keep' for what 'partition' was, and exactly_once=False for what 'off' was",
    "delete_marker": "delete_when='gone', a predicate, and except_columns=['gone']",
    # Values of `write`.
    "dynamic": "write='overwrite_partitions'",
    "touched_partitions": "write='overwrite_changed'",
    "overwrite_touched": "write='overwrite_changed'",
    "scd2": "write='cdc' with scd=2 and sequence_by, which takes late rows, too",
}
"""Name of a setting, or value of `write`, in earlier releases → what to write now."""

OLD_ARGUMENTS: Mapping[str, str] = {
    **OLD_NAMES,
    "keys": "merge_keys",
    "checks": "audit",
    "adds": "write='append' or write='overwrite'",
}
"""As `OLD_NAMES`, for arguments of tasks. In metadata, a user may have such names."""


def refuse_old_names(names: Iterable[object], old_names: Mapping[str, str] = OLD_NAMES) -> None:
    """Raises InvalidRequestError: A name is from an earlier release. The error says what to write now."""
    for name in names:
        if isinstance(name, str) and name in old_names:
            raise InvalidRequestError(
                f"{name!r} is a name from an earlier release",
                cause="It has another name now",
                remedy=f"Write {old_names[name]}",
                key=name,
            )


def ensure_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raises InvalidRequestError: A value is not one of the choices."""
    if value not in choices:
        raise InvalidRequestError(
            f"{name}={value!r:.60} is not possible",
            cause=f"Possible are {', '.join(str(choice) for choice in choices if choice is not None)}",
            remedy="Choose one",
            argument=name,
        )
