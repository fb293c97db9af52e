"""Statements that others take part in: late writers, other clients, files of other programs, followers."""

from __future__ import annotations

import shutil
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch import DeltaTable
from delta_orch.errors import DeltaError, InvalidRequestError, UnsupportedFeatureError, VersionNotFoundError
from delta_orch.pipeline.incremental import IncrementalReader
from delta_orch.testing import FailingStore, Moment, open_table
from tests.harness.lake.evolving import EvolvingLake
from tests.harness.lake.model import Changes, Earlier, Table, bag, ensure_same, with_rows
from tests.harness.lake.tables import repeats
from tests.harness.lake.values import VARIANT, random_value
from tests.harness.merges.model import Row

try:
    import deltalake
except ImportError:  # pragma: no cover
    deltalake = None

_LATE = ("append", "overwrite", "replace_where", "replace_partitions", "delete", "update", "merge", "upsert",
         "merge_evolving", "evolve")  # fmt: skip
_OF_FEED = ("_change_type", "_commit_version", "_commit_timestamp")


class LakeOfMany(EvolvingLake):
    """With others."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.held: list[Earlier] = []

    def _earlier(self, table: Table) -> str:
        """From one of the last versions."""
        found = [mark for mark in table.marks[-4:] if mark >= table.kept]
        return self._late(Earlier(table, self.rng.choice(found), stages=False))

    def _stage(self, table: Table) -> str:
        earlier = Earlier(table, table.marks[-1], stages=True)
        told = self._late(earlier)
        if earlier.held:
            self.held.append(earlier)
        return told

    def _publish(self, table: Table) -> str:
        found = [earlier for earlier in self.held if earlier.now is table]
        if not found:
            return "not here"
        earlier = self.rng.choice(found)
        self.held.remove(earlier)
        self._says(f"of {earlier.version}")
        return earlier.publish()

    def _late(self, earlier: Any) -> str:
        name = self.rng.choice(_LATE)
        self._says(f"of {earlier.version}: {name}")
        told: str = getattr(self, f"_{name}")(earlier)
        return told

    def _foreign(self, table: Table) -> str:
        """Another client appends, deletes, compacts or writes a checkpoint, where it knows the features."""
        state, before = table.state, table.table.version()
        if state.checks or state.generated or state.identities or state.defaults or deltalake is None:
            return "not here"
        kind, number = self.rng.choice(["append", "append", "delete", "checkpoint", "compact"]), self.rng.randint(0, 2)
        self._says(kind)
        rows, changes = list(state.rows), None
        if kind == "append":
            data, new = self._data(state)
            data = data.select(state.schema.names)
            rows, changes = [*rows, *new], [("insert", row) for row in new]
        elif kind == "delete":
            self._says(number)
            rows = [row for row in rows if row["u"] % 3 != number]

        def call() -> None:
            theirs = deltalake.DeltaTable(table.path)
            if kind == "append":
                deltalake.write_deltalake(theirs, data, mode="append")
            elif kind == "delete":
                theirs.delete(f"u % 3 = {number}")
            elif kind == "checkpoint":
                theirs.create_checkpoint()
            else:
                theirs.optimize.compact()

        try:
            return table.expect(call, with_rows(state, rows), changes)
        except (deltalake.exceptions.DeltaError, deltalake.exceptions.CommitFailedError) as error:
            if table.table.version() != before:
                raise
            return f"refused by deltalake: {str(error)[:60]}"

    def _add_files(self, table: Table) -> str:
        """Files of another program in the table's directory, which may lack columns."""
        state, rng = table.state, self.rng
        rules = state.generated or state.identities or state.defaults
        if rules or VARIANT in state.schema.types or "delta.columnMapping.mode" in table.properties:
            return "not here"
        parts = [state.schema.field(name) for name in state.partition_by]
        fields = [f for f in state.schema if f not in parts and (f.name == "u" or rng.random() < 0.8)]
        rng.shuffle(fields)
        paths, values, new = [], [], list[Row]()
        for _ in range(rng.randint(1, 2)):
            rows = self._rows(fields, rng.choice([0, 1, 5]))
            path = table.path / f"from outside {next(self.others)}%20.parquet"
            pq.write_table(
                pa.Table.from_pylist(rows, pa.schema(fields)),
                path,
                row_group_size=rng.choice([1, 100]),
                write_statistics=rng.random() < 0.8,
                data_page_version=rng.choice(["1.0", "2.0"]),
            )
            chosen = {f.name: None if (v := random_value(rng, f.type)) in ("", b"") else v for f in parts}
            values.append(chosen)
            paths.append(path.name)
            new += [{**row, **chosen} for row in rows]
        self._says(f"{values} {[str(f) for f in fields]} {new}")
        new = self._stored(state, new)
        changes: Changes = [("insert", row) for row in new]
        call = lambda: table.table.add_files(paths, partition_values=values if parts else None)  # noqa: E731
        return self._put(table, call, [*state.rows, *new], new, changes)

    def _follow(self, table: Table) -> str:
        """A copy takes what has changed since it looked last, once, although tries fail or get no answer."""
        state, rng = table.state, self.rng
        if repeats(state):
            return "not here"
        told: list[str] = []
        path = self.folder / f"copy of {table.path.name}"
        most = rng.choice([None, None, 1, 2])
        source = DeltaTable(table.path)
        while True:
            store = FailingStore(DeltaTable(path).store)
            copy = open_table(store)
            moment = rng.choice([None, "fail_at", "lose_answer_at"])
            if moment:
                getattr(store, moment)(Moment.COMMIT_PUT)
            told.append(moment or "plain")
            try:
                batch = IncrementalReader(source, copy, on_recreated="bootstrap", max_versions=most).next_batch()
                if batch is None:
                    break
                if batch.feed is None:
                    options: Any = {"properties": {"delta.columnMapping.mode": "name"}} if self.is_odd else {}
                    copy.overwrite(batch.scan(), schema_mode="overwrite", txn=batch.txn, engine=self.engine, **options)
                    continue
                merge = copy.merge(
                    batch.changes.latest(["u"]), "t.u = s.u", source_alias="s", target_alias="t", txn=batch.txn,
                    engine=self.engine, schema_mode="merge",
                )  # fmt: skip
                merge.when_matched_delete("s._change_type = 'delete'").when_matched_update_all(except_columns=_OF_FEED)
                merge.when_not_matched_insert_all("s._change_type <> 'delete'", _OF_FEED).execute()
            except (UnsupportedFeatureError, VersionNotFoundError, InvalidRequestError) as error:
                self._says(error)
                told.append(type(error).__name__)
                shutil.rmtree(path)
            except DeltaError as error:
                if not error.context.get("retryable"):
                    raise
        self._says(told)
        rows = DeltaTable(path).snapshot().scan().to_arrow().select(state.schema.names)
        ensure_same("rows of a copy", bag(rows.cast(state.schema)), state.bag(state.rows))
        return f"{table.marks[-1]}"
