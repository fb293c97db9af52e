"""What a step may wait for in a table: a version, or a commit after a time, at one metadata request a check; or another
condition, such as partitions, rows, another step's commit, freshness.

A condition looks at one snapshot. `ConditionWatch` asks it only when there is a new version, so that a look without
news costs one metadata request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.protocol.epoch import micros_since_epoch

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.protocol.types import StructField


LOOKS_UNTIL_VERIFIED = 10
"""So many looks for the next commit until one that opens the table."""


@dataclass(frozen=True, slots=True)
class WatchGoal:
    """A version or a commit to wait for: exactly one of the two.

    Attributes:
        after_version: A version greater than this one; -1 waits for the table to be created.
        after_timestamp_ms: A commit later than this moment, in milliseconds since the epoch.
    """

    after_version: int | None = None
    after_timestamp_ms: int | None = None

    @classmethod
    def parse(cls, after_version: int | str | None, after_timestamp: datetime | str | None) -> WatchGoal:
        """From an operator's arguments, which templates may have rendered to text.

        Raises:
            InvalidRequestError: Not exactly one is given, the version is not an integer ≥ -1, or the timestamp is not
                ISO 8601 with a time zone.
        """
        if (after_version is None) == (after_timestamp is None):
            raise InvalidRequestError(
                "A version sensor waits for a version or for a time, exactly one of them",
                remedy="Pass after_version or after_timestamp",
            )
        if after_version is not None:
            return cls(after_version=whole_number("after_version", after_version, -1))
        assert after_timestamp is not None
        return cls(after_timestamp_ms=_parse_timestamp_ms(after_timestamp))

    def is_met_by(self, version: int, timestamp_ms: int) -> bool:
        if self.after_version is not None:
            return version > self.after_version
        assert self.after_timestamp_ms is not None
        return timestamp_ms > self.after_timestamp_ms


@dataclass(frozen=True, slots=True)
class ReachedVersion:
    """The newest version when the goal was found to be met, its commit time in milliseconds since the epoch, and what
    else there is to say of it."""

    version: int
    timestamp_ms: int
    details: Mapping[str, object]

    def report(self, table_uri: str) -> dict[str, object]:
        return {"table_uri": table_uri, "version": self.version, "timestamp_ms": self.timestamp_ms, **self.details}


class VersionWatch:
    """Polls one table's log for a goal.

    The first `check` makes sure where the table stands. From then on a check costs one metadata request for the commit
    after `seen_version`, never a listing, until there is one: versions are contiguous, so without it there is nothing
    newer. Every tenth check opens the table: one that was dropped and created again may have fewer versions.

    Args:
        log: The table's log. There need not be a table yet.
        goal: What to wait for.
        seen_version: A version known not to meet the goal while the one after it was not there (an earlier watch's);
            None to find out.
    """

    def __init__(self, log: TableLog, goal: WatchGoal, seen_version: int | None = None) -> None:
        self._log = log
        self._goal = goal
        self._checks = 0
        self._seen_id = ""
        self.seen_version = seen_version

    def check(self) -> ReachedVersion | None:
        """The newest version, if it meets the goal.

        Raises:
            CorruptLogError, UnsupportedFeatureError, StorageError: The table cannot be read.
        """
        if self.seen_version is None and not self._stands_at_goal():
            return self._look()
        assert self.seen_version is not None
        self._checks += 1
        is_due = self._checks % LOOKS_UNTIL_VERIFIED == 0
        return self._look() if self._log.has_version(self.seen_version + 1) or is_due else None

    def _stands_at_goal(self) -> bool:
        """Whether `after_version` is there, so that the commit after it decides. It is not where the table is younger,
        or where cleanup has removed it: then the commit after it may be gone as well."""
        after = self._goal.after_version
        if after is None or after < 0 or not self._log.has_version(after):
            return False
        self.seen_version = after
        return True

    def _look(self) -> ReachedVersion | None:
        if not self._log.exists():
            # The commit that creates the table is version 0.
            self.seen_version = -1
            return None
        snapshot, details = self._reported()
        if details is not None:
            return ReachedVersion(snapshot.version, snapshot.timestamp_ms, details)
        self._seen_id, self.seen_version = snapshot.metadata.id, snapshot.version
        return None

    def _is_seen(self, snapshot: Snapshot) -> bool:
        return (snapshot.metadata.id, snapshot.version) == (self._seen_id, self.seen_version)

    def _reported(self) -> tuple[Snapshot, Mapping[str, object] | None]:
        """The newest version, and what there is to report of one that meets the goal, else None."""
        snapshot = self._log.snapshot()
        return snapshot, {} if self._goal.is_met_by(snapshot.version, snapshot.timestamp_ms) else None


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """A whole number, which a template may have made text of.

    Raises:
        InvalidRequestError: The value is not a whole number, or below `least`.
    """
    try:
        number = None if isinstance(value, bool | float) else int(value)
    except (TypeError, ValueError):
        number = None
    if number is None or (least is not None and number < least):
        what = "" if least is None else f" of at least {least}"
        raise InvalidRequestError(f"{name}={value!r} is not a whole number{what}", remedy="Pass one", argument=name)
    return number


def _parse_timestamp_ms(value: datetime | str) -> int:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequestError(
            f"after_timestamp={value!r} is not a moment in time",
            remedy="Pass a timezone-aware datetime, or ISO 8601 with an offset such as {{ data_interval_end }}",
        )
    return micros_since_epoch(moment) // 1000


OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
Value = str | int | bool | date | None


class Condition:
    """A condition to wait for. Its kinds are frozen dataclasses of JSON values, so that a trigger can carry them."""

    kind: ClassVar[str]

    def met_by(self, table: DeltaTable, snapshot: TableSnapshot) -> Mapping[str, object] | None:
        """The details to report of a snapshot that fulfills the condition, else None.

        Raises:
            InvalidRequestError: The condition does not fit the table.
            DeltaError: The table cannot be read.
        """
        raise NotImplementedError

    def as_json(self) -> dict[str, object]:
        """The inverse of `condition_from_json`."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]  # every kind is a dataclass


@dataclass(frozen=True, slots=True)
class PartitionCondition(Condition):
    """The table has rows in a partition.

    Attributes:
        partitions: Partition column → its value; of a list any; None for null.
        operator: Compares the columns with single values.
    """

    kind = "partition"
    partitions: Mapping[str, Value | Sequence[Value]]
    operator: str = "="

    def __post_init__(self) -> None:
        if not isinstance(self.partitions, Mapping) or not self.partitions:
            raise InvalidRequestError("No partition is named", remedy='Pass partitions={"column": "value"}')
        for name, value in self.partitions.items():
            if isinstance(value, list | tuple) and not value:
                raise InvalidRequestError(
                    f"No value of {name!r} is waited for", cause="The list is empty", remedy="Name at least one value"
                )
            for one in value if isinstance(value, list | tuple) else (value,):
                if not (one is None or isinstance(one, str | int | date)):
                    raise InvalidRequestError(
                        f"{one!r:.100} is not a value of a partition column",
                        remedy="Write it as the column's values are written",
                        column=name,
                    )
        if self.operator not in OPERATORS:
            raise InvalidRequestError(
                f"partition_operator={self.operator!r} is not a comparison", remedy=f"Use {', '.join(OPERATORS)}"
            )
        for name, value in self.partitions.items():
            if self.operator != "=" and (value is None or isinstance(value, list | tuple)):
                raise InvalidRequestError(
                    f"{'A null' if value is None else 'A list of values'} of {name!r} compares only by =, "
                    f"not by {self.operator}",
                    remedy="Give the column one value",
                    column=name,
                )

    def met_by(self, table: DeltaTable, snapshot: TableSnapshot) -> Mapping[str, object] | None:
        from delta_orch.expressions.resolve import resolve_predicate
        from delta_orch.expressions.tree import conjunction

        tests = [self._test(snapshot, name, value) for name, value in self.partitions.items()]
        where = resolve_predicate(conjunction(*tests), snapshot.schema)
        return {} if has_rows(snapshot, where, 1) else None

    def _test(self, snapshot: TableSnapshot, name: str, value: Value | Sequence[Value]) -> Expression:
        from delta_orch.expressions.nodes import Column, Comparison, Literal
        from delta_orch.pipeline.partitions import one_of

        field = snapshot.schema.find(name)
        if field is None or field.name not in snapshot.partition_columns:
            raise ColumnNotFoundError(
                f"The table has no partition column {name!r}",
                remedy=f"Its partition columns are {', '.join(snapshot.partition_columns) or 'none'}",
                column=name,
            )
        values: Sequence[Value] = value if isinstance(value, list | tuple) else [value]  # type: ignore[list-item]
        typed = [None if one is None else _typed(field, one) for one in values]
        if self.operator == "=":
            return one_of(field, typed)
        return Comparison(self.operator, Column((field.name,)), Literal(typed[0], field.data_type))


@dataclass(frozen=True, slots=True)
class RowCondition(Condition):
    """At least `min_rows` rows satisfy `where`, or are there at all. Statistics answer where they suffice."""

    kind = "rows"
    where: str | None = None
    min_rows: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.min_rows, int) or isinstance(self.min_rows, bool) or self.min_rows < 1:
            raise InvalidRequestError(f"min_rows={self.min_rows!r} is not a number of rows", remedy="Pass at least 1")
        if self.where is not None and not (isinstance(self.where, str) and self.where.strip()):
            raise InvalidRequestError(f"where={self.where!r} is not a predicate", remedy="Leave it out for every row")

    def met_by(self, table: DeltaTable, snapshot: TableSnapshot) -> Mapping[str, object] | None:
        return {} if has_rows(snapshot, self.predicate(snapshot), self.min_rows) else None

    def predicate(self, snapshot: TableSnapshot) -> Expression | None:
        """`where`, fitted to the table."""
        if self.where is None:
            return None
        from delta_orch.expressions.resolve import resolve_predicate

        return resolve_predicate(self.where, snapshot.schema)


@dataclass(frozen=True, slots=True)
class TxnCondition(Condition):
    """An application has recorded a transaction: the step of another orchestrator is done.

    Attributes:
        app_id: As recorded, e.g. `cdc:gold<-…` or `dagster:…`.
        min_version: Its version, or a later one.
    """

    kind = "txn"
    app_id: str
    min_version: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.app_id, str) or not self.app_id.strip():
            raise InvalidRequestError("No application id is named", remedy="Pass the app_id of a recorded transaction")

    def met_by(self, table: DeltaTable, snapshot: TableSnapshot) -> Mapping[str, object] | None:
        recorded = snapshot.txn_version(self.app_id)
        return {"txn_version": recorded} if recorded is not None and recorded >= self.min_version else None


@dataclass(frozen=True, slots=True)
class FreshnessCondition(Condition):
    """Data changed within the last `max_age_s` seconds. Compaction and changes of properties are no news."""

    kind = "freshness"
    max_age_s: float

    def __post_init__(self) -> None:
        if not isinstance(self.max_age_s, int | float) or not self.max_age_s > 0:
            raise InvalidRequestError(
                f"max_age_s={self.max_age_s!r} is not a maximum age", remedy="Pass a time above 0"
            )

    def met_by(self, table: DeltaTable, snapshot: TableSnapshot) -> Mapping[str, object] | None:
        now_ms, most_ms = time.time() * 1000, self.max_age_s * 1000
        for version, timestamp_ms in _data_changes(table, snapshot, now_ms - most_ms):
            # By a clock that is further ahead data would never be old.
            is_told = timestamp_ms <= now_ms + most_ms
            return {"data_version": version, "data_timestamp_ms": timestamp_ms} if is_told else None
        return None


_KINDS = {kind.kind: kind for kind in (PartitionCondition, RowCondition, TxnCondition, FreshnessCondition)}


def condition_from_json(value: Mapping[str, object]) -> Condition:
    """The inverse of `Condition.as_json`."""
    kind = _KINDS.get(str(value.get("kind")))
    arguments = {name: part for name, part in value.items() if name != "kind"}
    if kind is None or not arguments.keys() <= kind.__dataclass_fields__.keys():
        raise InvalidRequestError(
            "The condition was not made by Condition.as_json", remedy=f"Kinds: {', '.join(_KINDS)}"
        )
    return kind(**arguments)  # type: ignore[arg-type]  # as it was written


class ConditionWatch(VersionWatch):
    """Polls one table for a condition: as `VersionWatch`, and the condition is asked only where there is a new version.

    Args:
        table: There need not be a table yet.
        condition: The condition to wait for.
        seen_version: A version known not to fulfill it; None to find out.
    """

    def __init__(self, table: DeltaTable, condition: Condition, seen_version: int | None = None) -> None:
        super().__init__(table.log, WatchGoal(), seen_version)
        self._table = table
        self._condition = condition

    def _reported(self) -> tuple[Snapshot, Mapping[str, object] | None]:
        snapshot = self._table.snapshot()
        return snapshot, None if self._is_seen(snapshot) else self._condition.met_by(self._table, snapshot)


def has_rows(snapshot: TableSnapshot, where: Expression | None, at_least: int) -> bool:
    """Whether so many rows satisfy a resolved predicate. Statistics answer where they suffice."""
    from delta_orch.pipeline.maintenance import ROW_COUNT_COLUMNS, count_rows
    from delta_orch.pipeline.partitions import looks_only_at

    if where is None or looks_only_at(where, snapshot.partition_columns):
        counted = count_rows(snapshot.files(ROW_COUNT_COLUMNS, where))
        if counted is not None:
            return counted >= at_least
    num_rows = 0
    for batch in snapshot.scan([snapshot.schema.names[0]], where).to_reader():
        num_rows += batch.num_rows
        if num_rows >= at_least:
            return True
    return False


def _data_changes(table: DeltaTable, snapshot: TableSnapshot, oldest_ms: float) -> Iterator[tuple[int, int]]:
    """Version and time of commits that changed data, newest first, none before `oldest_ms`."""
    from delta_orch.pipeline.tail import changes_data

    for commit in table.log.newest_first(snapshot.version):
        if commit.timestamp_ms < oldest_ms:
            return
        if changes_data(commit):
            yield commit.version, commit.timestamp_ms


def _typed(field: StructField, value: Value) -> str | int | bool | date:
    """A value as one of the column's type; text as `parse_key` reads it."""
    from delta_orch.pipeline.partitions import key_text, parse_key

    text = value if isinstance(value, str) else key_text(value)
    is_plain_date = isinstance(value, date) and not isinstance(value, datetime)
    typed = None if str(field.data_type) != "date" and is_plain_date else parse_key(text, field.data_type)
    if typed is None:
        raise InvalidRequestError(
            f"{value!r} is not a value of the partition column {field.name} ({field.data_type})",
            remedy="Write it as the column's values are written",
            column=field.name,
        )
    return typed
