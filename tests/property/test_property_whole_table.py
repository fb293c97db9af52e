"""Any sequence of all verbs, all kinds of alterations and upkeep, against a model; see `whole_table`.

`DELTA_ORCH_EXAMPLES` multiplies the sequences tried."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from delta_orch.errors import ConstraintViolationError, InvalidRequestError
from tests.property.whole_table import MORE, WholeTable, pairs

RENAMED = "umbenannt"
DROPPABLE = [
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "clustering",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "inCommitTimestamp",
    "rowTracking",
    "v2Checkpoint",
]


class WholeDefinition(WholeTable):
    """`defaults` holds what columns are given that the data lacks."""

    @initialize()
    def begin(self) -> None:
        self.defaults: dict[str, str] = {}

    @property
    def more_columns(self) -> list[str]:
        return [c for c in self.columns if c not in ("day", "id")]

    @precondition(lambda self: self.mapped and self.more_columns and RENAMED not in self.columns)
    @rule()
    def rename_column(self) -> None:
        old = self.more_columns[0]
        self.committed(self.table.alter().rename_column(old, RENAMED).commit())
        self.columns[self.columns.index(old)] = RENAMED
        self.rows = [{RENAMED if c == old else c: v for c, v in row.items()} for row in self.rows]
        if old in self.defaults:
            self.defaults[RENAMED] = self.defaults.pop(old)

    @rule(chosen=st.integers(0, 3), first=st.booleans())
    def move_column(self, chosen: int, first: bool) -> None:
        name = self.columns[chosen % len(self.columns)]
        order = [c for c in self.columns if c != name]
        order.insert(0 if first else len(order), name)
        target = {"first": True} if first else {"after": order[-2]}
        self.committed(self.table.alter().move_column(name, **target).commit(), order != self.columns)
        self.columns = order

    @rule()
    def need_a_day(self) -> None:
        if any(row["day"] is None for row in self.rows):
            with pytest.raises(ConstraintViolationError):
                self.table.alter().set_not_null("day").commit()
            return
        self.committed(self.table.alter().set_not_null("day").commit(), not self.needs_day)
        self.needs_day = True

    @rule()
    def need_no_day(self) -> None:
        self.committed(self.table.alter().drop_not_null("day").commit(), self.needs_day)
        self.needs_day = False

    @rule(text=st.sampled_from(["", "a", "b"]))
    def comment(self, text: str) -> None:
        self.table.alter().set_column_comment("id", text).commit()
        self.version = self.table.version()
        found = self.table.snapshot().schema.find("id")
        assert found is not None
        assert found.metadata.get("comment", "") == text

    @rule(key=st.sampled_from("xy"))
    def unset_property(self, key: str) -> None:
        known = self.properties.pop(key, None)
        self.committed(self.table.alter().unset_properties(key, if_exists=True).commit(), known is not None)

    @precondition(lambda self: self.more_columns and not self.for_everybody)
    @rule(text=st.sampled_from(["given", "it''s"]))
    def set_default(self, text: str) -> None:
        name = self.more_columns[-1]
        self.table.alter().set_default(name, f"'{text}'").commit()
        self.version = self.table.version()
        self.defaults[name] = text.replace("''", "'")

    @precondition(lambda self: self.more_columns)
    @rule(given=pairs)
    def append_without_a_column(self, given: list[tuple[str | None, int]]) -> None:
        name = self.more_columns[-1]
        _, rows = self.data(given)
        data = self.as_table(rows, [c for c in self.columns if c != name])
        self.write(self.table.append, data, [{**row, name: self.defaults.get(name)} for row in rows], self.rows)

    @precondition(lambda self: not (self.partitioned or self.for_everybody))
    @rule(by=st.sampled_from([(), ("id",), ("day", "id")]))
    def cluster(self, by: tuple[str, ...]) -> None:
        self.table.alter().cluster_by(*by).commit()
        self.version = self.table.version()

    @precondition(lambda self: not self.for_everybody)
    @rule(name=st.sampled_from(DROPPABLE))
    def drop_feature(self, name: str) -> None:
        try:
            self.table.alter().drop_feature(name).commit()
        except InvalidRequestError:
            # It is not there, or in use.
            return
        finally:
            self.version = self.table.version()
        if name == "columnMapping":
            self.mapped = False
        self.has_v2 = self.has_v2 and name != "v2Checkpoint"
        self.has_domains = self.has_domains and name != "domainMetadata"

    @rule(given=pairs, name=st.sampled_from([None, *MORE]))
    def overwrite_with_another_schema(self, given: list[tuple[str | None, int]], name: str | None) -> None:
        columns = ["id", "day", *([name] if name else [])]
        _, rows = self.data(given, name if name not in self.columns else None)
        rows = [{c: row[c] for c in columns} for row in rows]
        if self.breaks_constraint(rows):
            with pytest.raises(ConstraintViolationError):
                self.table.overwrite(self.as_table(rows, columns), schema_mode="overwrite")
            return
        self.write(self.table.overwrite, self.as_table(rows, columns), rows, [], schema_mode="overwrite")
        self.columns = columns
        self.defaults = {c: text for c, text in self.defaults.items() if c in columns}


WholeDefinition.TestCase.settings = settings(
    max_examples=3 * int(os.environ.get("DELTA_ORCH_EXAMPLES", "1")), stateful_step_count=20, deadline=None
)
TestWholeTable = WholeDefinition.TestCase
