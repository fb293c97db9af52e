"""Tables of a catalog, by their names: what the catalog decides is what everybody sees."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from click.testing import CliRunner

import delta_orch.cli.main  # noqa: F401 (it adds the commands)
from delta_orch import DeltaTable, configure, sql
from delta_orch.catalog.discovery import list_below
from delta_orch.cli.app import app
from delta_orch.errors import (
    CatalogError,
    CommitOutcomeUnknownError,
    ConflictError,
    InvalidPropertyError,
    InvalidRequestError,
    MaintenanceNotAllowedError,
    MetadataChangedError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from delta_orch.log.upkeep.checkpoint_writer import write_checkpoint
from delta_orch.pipeline.maintenance import read_lake
from delta_orch.pipeline.tail import current_cursor, poll
from delta_orch.protocol.paths import commit_path
from tests.harness.unity_emulator import API, TOKEN, Fault, UnityEmulator, unity_emulator

NAME = "main.default.t"
URI = f"uc://{NAME}"


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.fixture
def unity(tmp_path: Path) -> Iterator[UnityEmulator]:
    """A catalog; what clients did against its specification fails the test."""
    with unity_emulator(tmp_path) as emulator:
        yield emulator
        emulator.ensure_lawful()


@pytest.fixture
def table(unity: UnityEmulator) -> DeltaTable:
    """Three rows in two versions."""
    made = DeltaTable(URI, unity.options)
    made.append(_rows(1, 2))
    made.append(_rows(3))
    return made


@pytest.fixture
def impatient() -> Iterator[None]:
    configure(retry_seconds=0.2)
    yield
    configure()


def _ids(table: DeltaTable, version: int | None = None) -> list[int]:
    snapshot = table.snapshot() if version is None else table.snapshot(version=version)
    found: list[int] = sorted(snapshot.scan().to_arrow()["id"].to_pylist())
    return found


def _directory(unity: UnityEmulator) -> Path:
    return Path(unquote(urlsplit(unity.table(NAME).location).path))


def _new(unity: UnityEmulator) -> DeltaTable:
    return DeltaTable(URI, unity.options)


# Every verb


def test_every_verb_commits_through_the_catalog(unity: UnityEmulator) -> None:
    table = _new(unity)
    table.create("id BIGINT, name STRING, tags ARRAY<STRUCT<k: INT>>", cluster_by=["id"], description="a table")
    table.append(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}), schema_mode="merge")
    table.delete("id = 1")
    table.update({"name": "'q'"}, where="id = 2")
    no_tags = pa.nulls(2, pa.list_(pa.struct({"k": pa.int32()})))
    table.upsert(pa.table({"id": [3, 4], "name": ["m", "n"], "tags": no_tags}), ["id"])
    table.alter().set_properties({"delta.enableChangeDataFeed": "true"}).commit()
    table.alter().unset_properties("delta.enableChangeDataFeed").commit()
    table.alter().set_description("another text").commit()
    table.alter().add_columns("extra MAP<STRING, DOUBLE>").commit()
    table.overwrite(pa.table({"id": [7], "name": ["z"]}))
    version = table.snapshot().version
    assert unity.table(NAME).latest == version
    assert _new(unity).snapshot().scan().to_arrow().to_pydict()["id"] == [7]
    table.restore(version=version - 1)
    assert sorted(_new(unity).snapshot().scan().to_arrow()["name"].to_pylist()) == ["m", "n", "q"]
    table.create_or_replace("other INT, name STRING", partition_by=["other"])
    assert unity.table(NAME).partition_columns == ["other"]
    assert not unity.table(NAME).domains["delta.clustering"]["clusteringColumns"]
    assert _new(unity).snapshot().schema.names == ("other", "name")


def test_partitions_constraints_and_change_feed(unity: UnityEmulator) -> None:
    table = _new(unity)
    table.append(
        pa.table({"id": [1, 2], "day": ["x", "y"]}),
        partition_by=["day"],
        properties={"delta.enableChangeDataFeed": "true"},
    )
    table.overwrite(pa.table({"id": [3], "day": ["x"]}), replace_where="day = 'x'")
    changes = _new(unity).changes(starting_version=1).to_arrow()
    assert sorted(zip(changes["id"].to_pylist(), changes["_change_type"].to_pylist(), strict=True)) == [
        (1, "delete"),
        (3, "insert"),
    ]


def test_versions_times_and_history(unity: UnityEmulator, table: DeltaTable) -> None:
    assert _ids(_new(unity), 0) == [1, 2]
    history = _new(unity).history()
    assert [entry.version for entry in history] == [1, 0]
    at = history[1].timestamp_ms
    assert _new(unity).snapshot(timestamp=pa.scalar(at, pa.timestamp("ms", "UTC")).as_py()).version == 0


def test_requests(unity: UnityEmulator, table: DeltaTable) -> None:
    with unity.counting() as opening:
        _new(unity).snapshot()
    assert opening == {"loadTable": 1}
    with unity.counting() as polling:
        table.snapshot()
    assert polling == {"loadTable": 1}
    with unity.counting() as committing:
        table.append(_rows(4))
    assert committing == {"loadTable": 1, "updateTable": 1, "reportMetrics": 1}
    assert unity.metrics[-1]["commit-report"]["num-files-added"] == 1


# What readers see


def test_a_ratified_commit_is_read_before_it_is_published(unity: UnityEmulator, table: DeltaTable) -> None:
    log = _directory(unity) / "_delta_log"
    unity.fail("updateTable", status=503, when="after", on=lambda: os.chmod(log, 0o500))  # noqa: PTH101
    try:
        table.append(_rows(4))
    finally:
        log.chmod(0o700)
    if os.getuid():  # Nothing is forbidden to root.
        assert not (log / f"{2:020d}.json").exists()
    assert _ids(_new(unity)) == [1, 2, 3, 4]


def test_the_next_writer_publishes_what_a_dead_one_left(unity: UnityEmulator, table: DeltaTable) -> None:
    unity.unpublish(NAME)
    assert _ids(_new(unity)) == [1, 2, 3]
    assert _ids(_new(unity), 1) == [1, 2, 3]
    _new(unity).append(_rows(4))
    assert (_directory(unity) / commit_path(1)).exists()
    _new(unity).append(_rows(5))
    assert (unity.table(NAME).backfilled, [*unity.table(NAME).commits]) == (2, [3])


def test_the_commit_that_the_catalog_names_goes_before_a_published_file(
    unity: UnityEmulator, table: DeltaTable
) -> None:
    unity.unpublish(NAME)
    (_directory(unity) / commit_path(1)).write_bytes(b"not a commit")
    assert _ids(_new(unity)) == [1, 2, 3]
    unity.table(NAME).backfilled = 1
    unity.table(NAME).commits.clear()


def test_nothing_behind_the_newest_version_of_the_catalog(unity: UnityEmulator, table: DeltaTable) -> None:
    log = _directory(unity) / "_delta_log"
    (log / f"{2:020d}.json").write_bytes((log / f"{1:020d}.json").read_bytes())
    (log / "_staged_commits" / f"{2:020d}.11111111-1111-1111-1111-111111111111.json").write_bytes(b"{}")
    reader = _new(unity)
    assert reader.snapshot().version == 1
    assert reader.log.latest_version() == 1
    assert not reader.log.has_version(2)
    assert [entry.version for entry in reader.history()] == [1, 0]
    (log / f"{2:020d}.json").unlink()


def test_versions_of_a_reader_never_go_back(unity: UnityEmulator, table: DeltaTable) -> None:
    unity.lag = 3
    assert table.snapshot().version == 1  # It has made version 1, and the catalog lags behind.
    assert _ids(table) == [1, 2, 3]


def test_a_table_that_got_the_name_later_is_another_one(unity: UnityEmulator, table: DeltaTable) -> None:
    del unity.tables["main", "default", "t"]
    with pytest.raises(TableNotFoundError, match="not the one that was opened"):
        table.snapshot()
    _new(unity).append(_rows(9))
    with pytest.raises(TableNotFoundError, match="not the one that was opened"):
        table.append(_rows(4))
    assert _ids(_new(unity)) == [9]


def test_the_files_alone_are_refused(unity: UnityEmulator, table: DeltaTable) -> None:
    location = unity.table(NAME).location
    with pytest.raises(UnsupportedFeatureError, match=r"uc://catalog\.schema\.table"):
        DeltaTable(location).snapshot()
    with pytest.raises(UnsupportedFeatureError, match="catalogManaged"):
        DeltaTable(location).append(_rows(4))
    assert _ids(table) == [1, 2, 3]


def test_only_a_catalog_makes_such_a_table(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="catalogManaged"):
        DeltaTable(tmp_path / "t").create("id INT", properties={"delta.feature.catalogManaged": "supported"})
    assert not DeltaTable(tmp_path / "t").exists()


# What goes wrong


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("status", [0, 503, 429])
@pytest.mark.parametrize("endpoint", ["updateTable", "loadTable", "createTable", "createStagingTable", "getConfig"])
def test_each_fault_once(unity: UnityEmulator, endpoint: str, status: int, when: str) -> None:
    from delta_orch.catalog import client

    client._endpoints.clear()
    unity.faults.append(Fault(endpoint, status, "TooManyRequestsException", when, 1))  # type: ignore[arg-type]
    table = _new(unity)
    table.append(_rows(1))
    unity.faults.append(Fault(endpoint, status, "TooManyRequestsException", when, 2))  # type: ignore[arg-type]
    table.append(_rows(2))
    table.append(_rows(3))
    assert _ids(_new(unity)) == [1, 2, 3]
    assert unity.table(NAME).latest == 2


def test_an_unknown_outcome_is_asked_for(unity: UnityEmulator, table: DeltaTable, impatient: None) -> None:
    """The server fails for longer than a request is repeated: the table is looked at, as the specification wants."""
    unity.fail("updateTable", when="after", times=6)
    assert table.append(_rows(4)).version == 2
    assert _ids(_new(unity)) == [1, 2, 3, 4]


def _go_down(unity: UnityEmulator) -> None:
    for endpoint in ("loadTable", "updateTable"):
        unity.fail(endpoint, times=1000)


def test_an_unknown_outcome_that_nobody_tells(unity: UnityEmulator, table: DeltaTable, impatient: None) -> None:
    unity.fail("updateTable", when="after", on=partial(_go_down, unity))
    with pytest.raises(CommitOutcomeUnknownError, match="unknown whether version 2"):
        table.append(_rows(4))
    unity.faults.clear()
    assert _ids(_new(unity)) == [1, 2, 3, 4]


def test_with_a_txn_running_again_is_safe(unity: UnityEmulator, table: DeltaTable, impatient: None) -> None:
    unity.fail("updateTable", when="after", on=partial(_go_down, unity))
    with pytest.raises(CommitOutcomeUnknownError) as caught:
        table.append(_rows(4), txn=("job", 1))
    assert caught.value.retryable
    unity.faults.clear()
    assert _new(unity).append(_rows(4), txn=("job", 1)).skipped
    assert _ids(_new(unity)) == [1, 2, 3, 4]


def test_a_catalog_out_of_reach(unity: UnityEmulator, table: DeltaTable, impatient: None) -> None:
    unity.stop()
    with pytest.raises(CatalogError, match="cannot be reached") as caught:
        table.append(_rows(4))
    assert caught.value.retryable


def test_a_race_is_rebased(unity: UnityEmulator, table: DeltaTable) -> None:
    """Another writer commits between the look at the table and the proposal."""
    unity.fail("updateTable", status=503, on=partial(unity.answer_another, partial(_new(unity).append, _rows(5))))
    result = table.append(_rows(4))
    assert _ids(_new(unity)) == [1, 2, 3, 4, 5]
    assert result.version == 3
    assert result.rebased_versions == (2,)


def test_a_conflict_is_a_conflict(unity: UnityEmulator, table: DeltaTable) -> None:
    seen = _new(unity).snapshot()
    _new(unity).alter().add_columns("name STRING").commit()
    with pytest.raises(MetadataChangedError):
        seen.delete("id = 1")
    seen = _new(unity).snapshot()
    _new(unity).delete("id = 1")
    with pytest.raises(ConflictError):
        seen.delete("id = 1")
    assert _ids(_new(unity)) == [2, 3]


def test_a_stale_etag_is_not_a_conflict_of_rows(unity: UnityEmulator, table: DeltaTable) -> None:
    table.snapshot()
    unity.table(NAME).etag += 1  # Somebody has changed the comment, in the catalog alone.
    assert table.alter().set_properties({"delta.appendOnly": "true"}).commit().version == 2
    assert unity.table(NAME).properties["delta.appendOnly"] == "true"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("status", [0, 503])
def test_a_server_that_takes_a_repeated_request_for_a_conflict(unity: UnityEmulator, status: int, when: str) -> None:
    """Before the specification was final, the open server did not recognize it; its etag changed with each commit."""
    unity.is_early = True
    table, other = _new(unity), _new(unity)
    table.append(_rows(1))
    unity.fail("updateTable", status=status, when=when)  # type: ignore[arg-type]
    table.append(_rows(2))
    unity.fail("updateTable", status=status, when=when)  # type: ignore[arg-type]
    table.append(pa.table({"id": [3], "name": ["x"]}), schema_mode="merge")
    other.append(_rows(4))
    table.alter().set_properties({"delta.appendOnly": "true"}).commit()
    assert _ids(_new(unity)) == [1, 2, 3, 4]
    assert unity.table(NAME).latest == 4


def test_a_property_of_the_catalog_alone_stays(unity: UnityEmulator, table: DeltaTable) -> None:
    unity.table(NAME).properties["owner.team"] = "lake"
    unity.table(NAME).etag += 1
    table.append(pa.table({"id": [4], "name": ["x"]}), schema_mode="merge")
    assert unity.table(NAME).properties["owner.team"] == "lake"
    unity.violations.clear()  # The emulator compares everything with the log.


def test_a_domain_of_the_user_is_in_the_log_alone(unity: UnityEmulator, table: DeltaTable) -> None:
    domains = dict(unity.table(NAME).domains)
    table.set_domain_metadata("mine", '{"a": 1}')
    assert unity.table(NAME).domains == domains
    assert _new(unity).snapshot().domain_metadata["mine"] == '{"a": 1}'
    table.remove_domain_metadata("mine")
    assert "mine" not in _new(unity).snapshot().domain_metadata


def test_too_many_commits_that_are_not_published(unity: UnityEmulator, table: DeltaTable) -> None:
    unity.most_unbackfilled = 1
    unity.unpublish(NAME)
    writer = _new(unity)
    writer.append(_rows(4))
    assert unity.table(NAME).backfilled == 1
    with unity.counting() as requests:
        writer.append(_rows(5))
    assert requests["updateTable"] == 1, "what is published is reported with the next commit"


def test_what_the_catalog_refuses(unity: UnityEmulator, table: DeltaTable) -> None:
    unity.fail("updateTable", status=403, kind="PermissionDeniedException")
    with pytest.raises(CatalogError, match="PermissionDenied") as caught:
        table.append(_rows(4))
    assert not caught.value.retryable
    with pytest.raises(CatalogError, match="lacks"):
        table.alter().set_properties({"delta.checkpointPolicy": "classic"}).commit()
    assert _ids(_new(unity)) == [1, 2, 3]
    assert unity.table(NAME).latest == 1


def test_tables_that_iceberg_clients_share_are_not_written(unity: UnityEmulator, table: DeltaTable) -> None:
    unity.table(NAME).properties["delta.universalFormat.enabledFormats"] = "iceberg"
    with pytest.raises(UnsupportedFeatureError, match="UniForm"):
        _new(unity).append(_rows(4))
    assert _ids(_new(unity)) == [1, 2, 3]


def test_an_answer_that_contradicts_itself(unity: UnityEmulator, table: DeltaTable) -> None:
    unity.unpublish(NAME)
    unity.table(NAME).commits[1]["file-name"] = "../../secret.json"
    with pytest.raises(CatalogError, match="specification"):
        _new(unity).snapshot()


# Creation


def test_two_writers_create_one_table(unity: UnityEmulator) -> None:
    first, second = _new(unity), _new(unity)
    second.store.definition_rules()  # It has its staging table already.
    first.append(_rows(1))
    with pytest.raises(MetadataChangedError, match="Another writer created") as caught:
        second.append(_rows(2))
    assert caught.value.retryable
    second.append(_rows(2))
    assert _ids(_new(unity)) == [1, 2]


def test_a_lost_answer_to_the_creation(unity: UnityEmulator) -> None:
    unity.fail("createTable", status=0, when="after")
    _new(unity).append(_rows(1))
    assert _ids(_new(unity)) == [1]


def test_what_the_catalog_requires(unity: UnityEmulator) -> None:
    with pytest.raises(InvalidPropertyError, match="contradicts the catalog"):
        _new(unity).create("id INT", properties={"delta.checkpointPolicy": "classic"})
    _new(unity).create("id INT", properties={"delta.enableRowTracking": "false"})
    assert unity.table(NAME).properties["delta.enableRowTracking"] == "false"
    unity.required_properties["delta.somethingNew"] = None
    with pytest.raises(InvalidPropertyError, match="somethingNew"):
        DeltaTable("uc://main.default.u", unity.options).create("id INT")


def test_schemas_and_catalogs_that_are_not_there(unity: UnityEmulator) -> None:
    for name, match in (("main.nope.t", "no schema"), ("nope.default.t", "no catalog"), (NAME, "no Delta table")):
        with pytest.raises(TableNotFoundError, match=match):
            DeltaTable(f"uc://{name}", unity.options).snapshot()
    assert not _new(unity).exists()


# Maintenance


def test_maintenance_is_left_to_the_catalog(unity: UnityEmulator, table: DeltaTable) -> None:
    for verb in (table.optimize, table.vacuum, table.purge, table.cleanup_log):
        with pytest.raises(MaintenanceNotAllowedError, match="is not allowed for"):
            verb()
    assert unity.table(NAME).latest == 1
    unity.allowed_maintenance[:] = ["DATA_REORGANIZATION", "DATA_CLEANUP", "METADATA_CLEANUP"]
    reader = _new(unity)
    assert reader.optimize().version == 2
    reader.vacuum()
    reader.cleanup_log()
    assert _ids(reader) == [1, 2, 3]


def test_checkpoints_stand_for_published_versions(unity: UnityEmulator, table: DeltaTable) -> None:
    unity.unpublish(NAME)
    other = _new(unity)
    other.checkpoint()
    assert (_directory(unity) / commit_path(1)).exists(), "publishing comes first"
    for number in range(12):
        table.append(_rows(10 + number))
    assert list((_directory(unity) / "_delta_log").glob("*.checkpoint.*"))
    assert len(_ids(_new(unity))) == 15


def test_a_commit_that_is_published_meanwhile_still_is_the_same(unity: UnityEmulator, table: DeltaTable) -> None:
    unity.unpublish(NAME)
    reader = _new(unity)
    seen = reader.snapshot()
    _new(unity).append(_rows(4))  # It publishes version 1 as well.
    assert reader.store.is_unchanged(seen.segment.version_file)
    assert reader.store.head(commit_path(1)) == seen.segment.version_file
    write_checkpoint(reader.log, seen)
    assert _ids(_new(unity)) == [1, 2, 3, 4]


# Names, settings, secrets


@pytest.mark.parametrize("name", ["a.b", "a.b.c.d", "a..c", "", "a.b.c/d", "a.b.`c"])
def test_names_have_three_parts(name: str, unity: UnityEmulator) -> None:
    with pytest.raises(InvalidRequestError, match="not the name of a table"):
        DeltaTable(f"uc://{name}", unity.options)


def test_a_name_in_backticks(unity: UnityEmulator) -> None:
    table = DeltaTable("uc://main.default.`a.b c/d`", unity.options)
    table.append(_rows(1))
    assert ("main", "default", "a.b c/d") in unity.tables
    assert _ids(DeltaTable("uc://main.default.`a.b c/d`", unity.options)) == [1]


def test_settings_of_the_environment(unity: UnityEmulator, table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequestError, match="The address of the catalog is not set"):
        DeltaTable(URI)
    monkeypatch.setenv("DATABRICKS_HOST", unity.endpoint)
    monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
    assert _ids(DeltaTable(URI)) == [1, 2, 3]
    monkeypatch.setenv("UNITY_CATALOG_URI", f"{unity.endpoint}{API}/")
    with pytest.raises(CatalogError, match="401"):
        DeltaTable(URI).snapshot()  # The token of Databricks is not sent there.
    assert _ids(DeltaTable(URI, {"databricks_host": unity.endpoint})) == [1, 2, 3]
    monkeypatch.setenv("UNITY_CATALOG_TOKEN", "a-wrong-token-12345")
    with pytest.raises(CatalogError, match="401"):
        DeltaTable(URI).snapshot()


def test_machines_ask_for_a_token(unity: UnityEmulator, table: DeltaTable) -> None:
    options = {
        "unity_catalog_uri": unity.endpoint,
        "unity_catalog_client_id": "id",
        "unity_catalog_client_secret": "a-secret-0815",
        "unity_catalog_oauth_uri": f"{unity.endpoint}{API}/oidc/v1/token",
    }
    assert _ids(DeltaTable(URI, options)) == [1, 2, 3]
    unity.tokens.clear()  # As if it had ended early.
    assert _ids(DeltaTable(URI, options)) == [1, 2, 3]


def test_no_secret_is_shown_or_kept(unity: UnityEmulator, table: DeltaTable, impatient: None) -> None:
    assert TOKEN not in repr(table.store) + repr(table.store._client.settings)  # type: ignore[attr-defined]
    unity.tokens.clear()
    with pytest.raises(CatalogError) as caught:
        _new(unity).snapshot()
    assert TOKEN not in f"{caught.value} {caught.value.context} {caught.value!r}"


def test_a_pickled_table_asks_for_itself(unity: UnityEmulator, table: DeltaTable) -> None:
    store = pickle.loads(pickle.dumps(table.store))
    assert store.head(commit_path(1)) is not None


# External tables


def test_external_tables_commit_by_their_files(unity: UnityEmulator, tmp_path: Path) -> None:
    DeltaTable(tmp_path / "external").append(_rows(1))
    unity.add_external(NAME, (tmp_path / "external").as_uri())
    table = _new(unity)
    table.append(_rows(2))
    assert _ids(DeltaTable(tmp_path / "external")) == [1, 2]
    DeltaTable(tmp_path / "external").append(_rows(3))
    assert _ids(table) == [1, 2, 3]
    table.optimize()
    assert "updateTable" not in unity.requests
    with unity.counting() as counted:
        table.append(_rows(4))
    assert not counted, "files decide"


# Kills


def _append_until_killed(options: dict[str, str], start: int) -> None:
    table = DeltaTable(URI, options)
    for number in range(start, start + 1000):
        table.append(_rows(number), txn=("killed", number))


@pytest.mark.long
@pytest.mark.parametrize("moment", range(6))
def test_a_killed_writer_loses_and_doubles_nothing(unity: UnityEmulator, table: DeltaTable, moment: int) -> None:
    context = multiprocessing.get_context("spawn")
    writer = context.Process(target=_append_until_killed, args=(unity.options, 100))
    writer.start()
    assert writer.pid is not None
    when: str = "after" if moment % 2 else "before"
    pid = writer.pid
    endpoint = ("updateTable", "loadTable", "reportMetrics")[moment // 2]
    while unity.table(NAME).latest < 3:
        pass
    unity.faults.append(Fault(endpoint, 0, "", when, 1, lambda: os.kill(pid, signal.SIGKILL)))  # type: ignore[arg-type]
    writer.join(60)
    assert writer.exitcode == -signal.SIGKILL
    latest = unity.table(NAME).latest
    before = _ids(_new(unity))
    assert before == [1, 2, 3, *range(100, 100 + len(before) - 3)]
    assert len(before) == latest + 2
    again = _new(unity)
    for number in range(100, 100 + len(before) - 3 + 2):
        again.append(_rows(number), txn=("killed", number))
    assert _ids(_new(unity)) == [1, 2, 3, *range(100, 100 + len(before) - 3 + 2)]
    log, latest = _directory(unity), unity.table(NAME).latest
    assert all((log / commit_path(version)).exists() for version in range(latest + 1)), "all are published"
    assert [*unity.table(NAME).commits] == [latest], "all but the last are reported"


# Other doors


def test_sql_takes_names_of_three_parts(unity: UnityEmulator, table: DeltaTable) -> None:
    found = sql(f"SELECT sum(id) AS total FROM {NAME}", storage_options=unity.options)
    assert found.to_pydict() == {"total": [6]}  # type: ignore[attr-defined]
    sql(f"DELETE FROM {NAME} WHERE id = 1", storage_options=unity.options)
    sql("CREATE TABLE main.default.made (id BIGINT) USING delta", storage_options=unity.options)
    sql(f"INSERT INTO main.default.made SELECT id FROM delta.`{URI}`", storage_options=unity.options)
    assert _ids(DeltaTable("uc://main.default.made", unity.options)) == [2, 3]
    with pytest.raises(InvalidRequestError, match="no relation"):
        sql("SELECT * FROM a.b.c")


def test_the_command_line(unity: UnityEmulator, table: DeltaTable) -> None:
    options = [word for name, value in unity.options.items() for word in ("-o", f"{name}={value}")]
    unity.catalogs["main"].add("other schema")
    for name in ("a", "b", "c"):
        unity.add_external(f"main.default.{name}", "file:///nowhere")
    printed = {
        uri: CliRunner().invoke(app, ["tables", uri, *options]).stdout.split("\n")[:-1]
        for uri in ("uc://", "uc://main", "uc://main.default")
    }
    assert printed == {
        "uc://": ["uc://main"],
        "uc://main": ["uc://main.default", "uc://main.`other schema`"],
        "uc://main.default": [f"uc://main.default.{name}" for name in ("a", "b", "c", "t")],
    }
    shown = CliRunner().invoke(app, ["snapshot", URI, *options])
    assert URI in shown.stdout
    assert TOKEN not in shown.stdout
    with pytest.raises(CatalogError, match=r"CATALOG_NOT_FOUND \(404\)[\s\S]*Catalog not found: nope"):
        [*list_below("uc://nope", unity.options)]


def test_what_a_table_calls_itself_asks_nobody(unity: UnityEmulator) -> None:
    with unity.counting() as counted:
        assert _new(unity).uri == URI
        assert _new(unity).store.address == URI
    assert not counted


def test_a_change_feed_that_follows_the_table(unity: UnityEmulator, table: DeltaTable) -> None:
    cursor = current_cursor(table.log)
    assert poll(table.log, cursor) is None
    _new(unity).append(_rows(4))
    with unity.counting() as counted:
        batch = poll(table.log, cursor)
    assert batch is not None
    assert (batch.starting_version, batch.ending_version) == (2, 2)
    assert counted["loadTable"] <= 2


def test_a_staged_write_is_published_through_the_catalog(unity: UnityEmulator, table: DeltaTable) -> None:
    staged = table.append(_rows(4), stage=True)
    assert _ids(_new(unity)) == [1, 2, 3]
    assert staged.staged is not None
    _new(unity).append(_rows(5))
    _new(unity).staged(staged.staged).publish()
    assert _ids(_new(unity)) == [1, 2, 3, 4, 5]


def test_clones_are_refused_and_rows_are_copied(unity: UnityEmulator, table: DeltaTable, tmp_path: Path) -> None:
    DeltaTable(tmp_path / "plain").append(_rows(7))
    for source, target in ((table, str(tmp_path / "copy")), (DeltaTable(tmp_path / "plain"), "uc://main.default.c")):
        with pytest.raises(UnsupportedFeatureError, match="cannot be cloned"):
            source.clone(target, storage_options=unity.options)
    # The remedy of the error.
    DeltaTable(tmp_path / "copy").append(table.snapshot())
    DeltaTable("uc://main.default.c", unity.options).append(DeltaTable(tmp_path / "plain").snapshot())
    assert _ids(DeltaTable(tmp_path / "copy")) == [1, 2, 3]
    assert _ids(DeltaTable("uc://main.default.c", unity.options)) == [7]


def test_a_report_on_a_schema(unity: UnityEmulator, table: DeltaTable) -> None:
    DeltaTable("uc://main.default.u", unity.options).append(_rows(1))
    report = read_lake(["uc://main.default"], unity.options)
    assert {state.uri: (state.num_rows, state.error) for state in report.tables} == {
        URI: (3, None),
        "uc://main.default.u": (1, None),
    }
