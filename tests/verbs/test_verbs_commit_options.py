"""What rides along with a commit: dry runs, isolation, own metrics, txn policies, metadata domains."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import (
    ConcurrentAppendError,
    ConcurrentDomainMetadataError,
    ConflictError,
    ConstraintViolationError,
    DeltaError,
    InvalidExpressionError,
    InvalidPropertyError,
    InvalidRequestError,
)
from delta_orch.expressions.parse import parse_expression
from tests.certain import a, some

ROWS = pa.table({"id": [1, 2]})
WITH_DOMAINS = {"delta.feature.domainMetadata": "supported"}


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def table_of_now(table: DeltaTable) -> DeltaTable:
    """The table for a writer that has looked at it now, whatever others do before it commits."""
    late = DeltaTable(table.uri)
    snapshot = late.snapshot()
    late.snapshot = lambda *_, **__: snapshot  # type: ignore[method-assign]
    return late


def kinds(result: Any) -> list[str]:
    return [type(action).__name__ for action in result.preview.actions()]


# Dry runs


@pytest.mark.long
def test_dry_runs_leave_no_file_and_show_the_actions(rows: Any, table: DeltaTable, days: Any, tmp_path: Path) -> None:
    data = rows.data(days(("a", 1), ("b", 2), ("b", 3)))
    first = table.append(data, partition_by=["day"], dry_run=True)
    assert first.version == 0
    assert kinds(first) == ["CommitInfo", "Protocol", "Metadata", "Add", "Add"]
    assert not table.exists() and not tree(tmp_path)
    table.append(data, partition_by=["day"])
    table.append(data)
    before = tree(tmp_path)
    small = rows.data(days(("b", 4)))
    results = {
        "append": table.append(small, dry_run=True, txn=("app", 1)),
        "all": table.overwrite(small, dry_run=True),
        "where": table.overwrite(small, replace_where="id > 2", dry_run=True),
        "partitions": table.overwrite(small, partition_overwrite_mode="dynamic", dry_run=True),
        "optimize": table.optimize(engine=rows.engine, dry_run=True),
        "alter": table.alter().set_properties({"mine": "1"}).commit(dry_run=True),
    }
    assert tree(tmp_path) == before
    assert {name: (r.version, r.skipped, r.attempts) for name, r in results.items()} == dict.fromkeys(
        results, (2, False, 0)
    )
    counted = {name: {kind: kinds(r).count(kind) for kind in set(kinds(r))} for name, r in results.items()}
    assert counted == {
        "append": {"CommitInfo": 1, "Txn": 1, "Add": 1},
        "all": {"CommitInfo": 1, "Remove": 4, "Add": 1},
        "where": {"CommitInfo": 1, "Remove": 2, "Add": counted["where"]["Add"]},
        "partitions": {"CommitInfo": 1, "Remove": 2, "Add": 1},
        "optimize": {"CommitInfo": 1, "Remove": 4, "Add": 2},
        "alter": {"CommitInfo": 1, "Metadata": 1},
    }
    assert results["optimize"].operation_metrics["numRemovedFiles"] == 4
    (adds,) = some(results["append"].preview).adds
    assert '"numRecords":1' in adds["stats"][0].as_py()
    assert table.append(small, txn=("app", 1)).version == 2
    assert table.append(small, txn=("app", 1), dry_run=True).skipped


def test_a_dry_run_finds_what_is_wrong(rows: Any, table: DeltaTable, days: Any, tmp_path: Path) -> None:
    table.append(rows.data(days(("a", 1))))
    before = tree(tmp_path)
    with pytest.raises(ConstraintViolationError):
        table.overwrite(rows.data(days(("a", 1), ("a", 5))), replace_where="id < 3", dry_run=True)
    assert tree(tmp_path) == before


def test_a_dry_run_of_a_creation(table: DeltaTable, days: Any, tmp_path: Path) -> None:
    result = table.create(days(("a", 1)).schema, partition_by=["day"], dry_run=True)
    assert kinds(result) == ["CommitInfo", "Protocol", "Metadata"]
    assert not tree(tmp_path)


# Isolation


def test_isolation_by_table_and_by_verb(table: DeltaTable, days: Any) -> None:
    """A blind append comes between the snapshot and the commit of an overwrite."""

    def race(**options: Any) -> None:
        late = table_of_now(table)
        DeltaTable(table.uri).append(days(("a", 9)))
        late.overwrite(days(("a", 1)), replace_where="id >= 0", **options)

    table.append(days(("a", 0)))
    race()
    race(isolation_level="SnapshotIsolation")
    with pytest.raises(ConcurrentAppendError):
        race(isolation_level="Serializable")
    table.alter().set_properties({"delta.isolationLevel": "Serializable"}).commit()
    with pytest.raises(ConflictError):
        race()
    race(isolation_level="WriteSerializable")
    info = table.log.read_commit(table.version()).commit_info
    assert info is not None
    assert info["isolationLevel"] == "WriteSerializable"
    with pytest.raises(InvalidRequestError, match="Unknown isolation level"):
        table.append(days(("a", 0)), isolation_level="ReadUncommitted")
    with pytest.raises(InvalidRequestError):
        table.alter().set_properties({"delta.isolationLevel": "SnapshotIsolation"}).commit()


# commitInfo


def test_own_metrics_stand_beside_the_verbs(table: DeltaTable, days: Any) -> None:
    result = table.append(
        days(("a", 1)),
        operation_metrics={"sourceRows": 12, "numFiles": 99},
        user_metadata="by hand",
        commit_info={"k": 1},
    )
    assert result.operation_metrics["sourceRows"] == 12
    assert result.operation_metrics["numFiles"] == 1
    info = table.log.read_commit(0).commit_info
    assert info is not None
    assert (a(dict, info["operationMetrics"])["sourceRows"], info["userMetadata"], info["k"]) == ("12", "by hand", 1)


# Idempotency keys


def test_by_default_a_lower_version_is_a_repetition(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)), txn=("app", 5))
    assert table.append(days(("a", 2)), txn=("app", 5)).skipped
    assert table.append(days(("a", 2)), txn=("app", 4)).skipped
    assert not table.append(days(("a", 2)), txn=("app", 6)).skipped


def test_expired_identifiers_are_forgotten(table: DeltaTable, days: Any) -> None:
    table.append(
        days(("a", 1)), txn=("app", 1), properties={"delta.setTransactionRetentionDuration": "interval 1 second"}
    )
    assert table.append(days(("a", 1)), txn=("app", 1)).skipped
    time.sleep(1.1)
    assert DeltaTable(table.uri).txns() == {}
    assert not DeltaTable(table.uri).append(days(("a", 1)), txn=("app", 1)).skipped


@pytest.mark.long
@pytest.mark.parametrize("inserts", [False, True])
@pytest.mark.parametrize(("verb", "left"), [("delete", [1, 3]), ("by_source_delete", [1, 2]), ("update", [1, 2, 3])])
def test_a_merge_leaves_out_the_partitions_that_are_recorded(
    rows: Any, table: DeltaTable, days: Any, ids: Any, verb: str, left: list[int], inserts: bool
) -> None:
    a, b = (TxnId(day, 1, scope=parse_expression(f"day = '{day}'")) for day in "ab")
    table.append(days(("a", 1), ("b", 2), ("b", 3)), partition_by=["day"])
    table.append(days(), txn=[a])
    source = rows.data(days(("a", 1), ("b", 2), ("a", 8), ("b", 9)))
    merge = table.merge(source, "target.day = source.day AND target.id = source.id", txn=[a, b], engine=rows.engine)
    # Where no row is inserted, none is made: only addresses are there to tell what leaves.
    match verb:
        case "delete":
            merge.when_matched_delete()
        case "by_source_delete":
            merge.when_not_matched_by_source_delete()
        case _:
            merge.when_matched_update({"value": "-1.0"})
    if inserts:
        merge.when_not_matched_insert_all()
    assert merge.execute().operation_metrics["numTargetRowsInserted"] == inserts
    assert sorted(i for found in ids(table).values() for i in found) == left + [9] * inserts


@pytest.mark.long
@pytest.mark.parametrize("verb", ["update", "merge"])
def test_no_row_moves_into_a_partition_that_is_recorded(
    rows: Any, table: DeltaTable, days: Any, ids: Any, verb: str
) -> None:
    # The commit left the row out, and removed it where it was: also where the id was recorded while it was made.
    txns = [TxnId(day, 1, scope=parse_expression(f"day = '{day}'")) for day in "abc"]
    table.append(days(("a", 1), ("b", 2), ("b", 3)), partition_by=["day"])
    table.append(days(), txn=txns[:1])

    def move(day: str) -> None:
        if verb == "update":
            table.update({"DAY": f"'{day}'"}, "id = 2", txn=txns, engine=rows.engine)
        else:
            merge = table.merge(rows.data(days(("x", 2))), "target.id = source.id", txn=txns, engine=rows.engine)
            merge.when_matched_update({"Day": f"'{day}'"}).execute()

    with pytest.raises(ConstraintViolationError, match="whose transaction id is recorded") as info:
        move("a")
    assert info.value.context["constraint"] == "txn scope"
    assert ids(table) == {"a": [1], "b": [2, 3]}
    late = table_of_now(table)
    DeltaTable(table.uri).append(days(), txn=txns[2:])
    table = late
    with pytest.raises(ConflictError, match="same application id"):
        move("c")
    assert ids(DeltaTable(table.uri)) == {"a": [1], "b": [2, 3]}
    table = DeltaTable(table.uri)
    move("b")
    assert ids(table) == {"a": [1], "b": [2, 3]}


@pytest.mark.long
def test_a_row_that_matches_in_a_recorded_partition_is_not_inserted_again(
    rows: Any, table: DeltaTable, days: Any, ids: Any
) -> None:
    txns = [TxnId(day, 1, scope=parse_expression(f"day = '{day}'")) for day in "ab"]
    table.append(days(("a", 1), ("b", 2)), partition_by=["day"])

    def upsert(at: DeltaTable, on: str) -> None:
        at.merge(rows.data(days(("b", 3))), on, txn=txns, engine=rows.engine).when_not_matched_insert_all().execute()

    late = table_of_now(table)
    DeltaTable(table.uri).upsert(days(("a", 3)), ["id"], txn=txns[:1])
    with pytest.raises(ConflictError):
        upsert(late, "target.id = source.id")
    with pytest.raises(InvalidRequestError, match="does not compare day"):
        upsert(DeltaTable(table.uri), "target.id = source.id")
    assert ids(DeltaTable(table.uri)) == {"a": [1, 3], "b": [2]}
    upsert(DeltaTable(table.uri), "target.id = source.id AND target.day = source.day")
    assert ids(DeltaTable(table.uri)) == {"a": [1, 3], "b": [2, 3]}


# Metadata domains


def test_domains_are_set_and_removed(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)), properties=WITH_DOMAINS)
    table.set_domain_metadata("com.example.lineage", '{"run":1}', user_metadata="first")
    table.set_domain_metadata("com.example.lineage", '{"run":2}')
    assert table.domain_metadata() == {"com.example.lineage": '{"run":2}'}
    table.checkpoint()
    table = DeltaTable(table.uri)
    assert table.remove_domain_metadata("com.example.lineage").version == 3
    (removed,) = table.log.read_commit(3).domain_metadata
    assert (removed.configuration, removed.removed) == ('{"run":2}', True)
    assert table.domain_metadata() == {}
    assert table.remove_domain_metadata("com.example.lineage").skipped
    assert table.version() == 3
    assert table.set_domain_metadata("app", "x", dry_run=True).preview is not None
    assert table.version() == 3


def test_domains_that_are_refused(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)), properties={"delta.enableRowTracking": "true"})
    for name in ("delta.rowTracking", "delta.mine", "Delta.x", ""):
        with pytest.raises(InvalidRequestError):
            table.set_domain_metadata(name, "{}")
        with pytest.raises(InvalidRequestError):
            table.remove_domain_metadata(name)
    with pytest.raises(InvalidRequestError, match="configuration must be str"):
        table.set_domain_metadata("app", {"x": 1})  # type: ignore[arg-type]
    assert table.version() == 0
    plain = DeltaTable(table.uri + "-2")
    plain.append(days(("a", 1)))
    with pytest.raises(InvalidRequestError, match="add_feature"):
        plain.set_domain_metadata("app", "{}")
    plain.alter().add_feature("domainMetadata").commit()
    plain.set_domain_metadata("app", "{}")
    assert plain.domain_metadata() == {"app": "{}"}


def test_two_writers_of_one_domain_conflict(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)), properties=WITH_DOMAINS)
    late = table_of_now(table)
    table.set_domain_metadata("app", "1")
    late.set_domain_metadata("other", "1")
    with pytest.raises(ConcurrentDomainMetadataError):
        late.set_domain_metadata("app", "2")


# What cannot be written


HALF_A_PAIR = "\ud800"
REFUSED: dict[str, dict[str, Any]] = {
    "user_metadata, bytes": {"user_metadata": b"x"},
    "user_metadata, a number": {"user_metadata": 5},
    "user_metadata, no Unicode": {"user_metadata": HALF_A_PAIR},
    "commit_info, a number": {"commit_info": 5},
    "commit_info, a user's number": {"commit_info": {"userName": 123}},
    "commit_info, a job as text": {"commit_info": {"job": "nightly"}},
    "commit_info, a tag as number": {"commit_info": {"tags": {"a": 1}}},
    "commit_info, a version": {"commit_info": {"version": 7}},
    "commit_info, no Unicode": {"commit_info": {"a": HALF_A_PAIR}},
    "operation_metrics, a number": {"operation_metrics": 5},
    "operation_metrics, pairs": {"operation_metrics": [("a", 1)]},
    "operation_metrics, a number as name": {"operation_metrics": {1: 1}},
    "operation_metrics, no Unicode": {"operation_metrics": {HALF_A_PAIR: 1}},
    "txn, no Unicode": {"txn": (HALF_A_PAIR, 1)},
}


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_what_json_cannot_hold_is_refused(table: DeltaTable, days: Any, given: dict[str, Any]) -> None:
    table.append(days(("a", 1)))
    with pytest.raises(InvalidRequestError):
        table.append(days(("b", 2)), **given)
    assert table.version() == 0
    assert table.snapshot().validate().checked


@pytest.mark.parametrize(
    ("option", "here"),
    [("predicate", "where"), ("custom_metadata", "commit_info"), ("mergeSchema", "schema_mode="), ("mode", "append")],
)
def test_names_of_other_clients_lead_to_ours(table: DeltaTable, days: Any, option: str, here: str) -> None:
    given: dict[str, Any] = {option: "x"}
    with pytest.raises(InvalidRequestError, match=rf"no option '{option}'\.\nHere it is {here}"):
        table.append(days(("a", 1)), **given)
    assert not table.exists()


def test_metrics_of_any_size_are_written(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)), operation_metrics=cast(dict[str, int], {"rows": 2**80, "ratio": 0.5}))
    metrics = table.history(1)[0].operation_metrics
    assert metrics is not None
    assert (metrics["rows"], metrics["ratio"]) == (str(2**80), "0.5")


def test_names_and_domains_that_are_no_unicode_are_refused(table: DeltaTable, days: Any) -> None:
    for definition in ({"name": HALF_A_PAIR}, {"properties": {"mine": HALF_A_PAIR}}, {"properties": {5: "x"}}):
        with pytest.raises((InvalidRequestError, InvalidPropertyError)):
            table.append(days(("a", 1)), **definition)
        assert not table.exists()
    table.append(days(("a", 1)), properties=WITH_DOMAINS)
    for domain, text in ((HALF_A_PAIR, "x"), ("x", HALF_A_PAIR)):
        with pytest.raises(InvalidRequestError):
            table.set_domain_metadata(domain, text)
    assert table.version() == 0


@pytest.mark.parametrize("hours", [-1, 1e300, float("inf"), float("nan"), True, "1"])
def test_vacuum_refuses_a_retention_that_is_none(table: DeltaTable, days: Any, hours: Any) -> None:
    table.append(days(("a", 1)))
    with pytest.raises(InvalidRequestError, match="retention_hours"):
        table.vacuum(retention_hours=hours)


@pytest.mark.parametrize("versions", [("a", 1), (0, 1.0), (True, 1), (-1, 1), (1, 1), (0, 9)])
def test_log_compaction_refuses_what_is_no_range(table: DeltaTable, days: Any, versions: Any) -> None:
    table.append(days(("a", 1)))
    table.append(days(("a", 2)))
    with pytest.raises(InvalidRequestError):
        table.compact_log(*versions)


def test_definitions_and_predicates_that_are_no_unicode_are_refused(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)))
    # Refused where they are given: an alteration cannot even be collected.
    for alter in (
        lambda alteration: alteration.set_properties({"mine": HALF_A_PAIR}),
        lambda alteration: alteration.set_properties({HALF_A_PAIR: "1"}),
        lambda alteration: alteration.add_column(f"c{HALF_A_PAIR}", "int"),
        lambda alteration: alteration.add_column("c", "int", comment=HALF_A_PAIR),
    ):
        with pytest.raises(DeltaError):
            alter(table.alter()).commit()
    for ask in (
        lambda where: table.alter().add_constraint("c", where).commit(),
        lambda where: table.overwrite(days(("b", 1)), replace_where=where),
        lambda where: table.snapshot().scan(where=where).to_arrow(),
    ):
        with pytest.raises(InvalidExpressionError):
            ask(f"day = '{HALF_A_PAIR}'")
    assert table.version() == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.create(pa.schema([("id", pa.int64())]), user_metdata="x"),
        lambda table: table.append(ROWS, user_metdata="x"),
        lambda table: table.overwrite(ROWS, user_metdata="x"),
        lambda table: table.optimize(user_metdata="x"),
        lambda table: table.set_domain_metadata("mine", "x", user_metdata="x"),
        lambda table: table.remove_domain_metadata("mine", user_metdata="x"),
        lambda table: table.alter().set_name("n").commit(user_metdata="x"),
    ],
)
def test_an_unknown_option_is_refused_and_the_near_one_named(
    table: DeltaTable, call: Callable[[DeltaTable], object]
) -> None:
    table.append(ROWS)
    with pytest.raises(InvalidRequestError, match="Did you mean user_metadata") as info:
        call(table)
    assert info.value.context["option"] == "user_metdata"
    assert table.version() == 0


def test_options_of_a_definition_are_no_options_of_a_commit(table: DeltaTable) -> None:
    table.append(ROWS)
    with pytest.raises(InvalidRequestError, match="partition_by"):
        table.optimize(partition_by=["id"])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": 5}, InvalidRequestError),
        ({"description": b"x"}, InvalidRequestError),
        ({"properties": "x"}, InvalidPropertyError),
        ({"properties": {"note": None}}, InvalidPropertyError),
        ({"properties": {"": "x"}}, InvalidPropertyError),
    ],
)
def test_texts_of_a_definition_are_strings(table: DeltaTable, options: dict[str, Any], error: type[DeltaError]) -> None:
    with pytest.raises(error):
        table.create(ROWS.schema, **options)
    with pytest.raises(error):
        table.append(ROWS, **options)
    assert not table.exists()


@pytest.mark.parametrize("txn", [("password", "S3CR3Tq9"), ("S3CR3Tq9", -1), [("secret", "S3CR3Tq9")], b"S3CR3Tq9", 5])
def test_what_is_no_idempotency_key_is_not_repeated(table: DeltaTable, txn: Any) -> None:
    table.append(ROWS)
    with pytest.raises(InvalidRequestError, match=r"txn|idempotency") as info:
        table.delete("id = 1", txn=txn)
    assert "S3CR3T" not in str(info.value)
