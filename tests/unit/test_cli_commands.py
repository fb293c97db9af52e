"""The command `delta-orch`: what it prints, for people and for programs, and how it fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.cli.main import run


class Outcome:
    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code, self.stdout, self.stderr = code, stdout, stderr

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Outcome(exit.value.code or 0, captured.out, captured.err)  # type: ignore[arg-type]

    return call


@pytest.fixture
def uri(tmp_path: Path) -> str:
    table = DeltaTable(tmp_path / "flights")
    rows = pa.table({"day": ["a", "b", None], "id": [1, 2, 3]})
    table.append(rows, partition_by=["day"], txn=("job", 7), name="flights", description="[bold]of 2013")
    table.append(pa.table({"day": ["a"], "id": [4]}), user_metadata="second")
    return str(tmp_path / "flights")


def test_snapshot(cli: Any, uri: str) -> None:
    shown = cli("snapshot", uri)
    assert shown.code == 0
    assert "[bold]of 2013" in shown.stdout
    described = cli("snapshot", uri, "--json").json
    snapshot = DeltaTable(uri).snapshot()
    assert described["version"] == 1
    assert described["metadata"]["id"] == snapshot.metadata.id
    assert described["metadata"]["schema_string"] == snapshot.metadata.schema_string
    assert described["metadata"]["partition_columns"] == ["day"]
    assert described["protocol"] == {
        "min_reader_version": 1,
        "min_writer_version": 2,
        "reader_features": None,
        "writer_features": None,
    }
    assert described["txns"] == {"job": 7}
    assert (described["num_files"], described["size_bytes"]) == (4, snapshot.size_bytes)
    assert cli("snapshot", uri, "--version", 0, "--json").json["num_files"] == 3


def test_read(cli: Any, uri: str, tmp_path: Path) -> None:
    output = tmp_path / "rows.parquet"
    done = cli("read", uri, "--output", output)
    assert (done.code, done.stderr) == (0, "")
    assert "4 rows" in done.stdout
    assert sorted(pq.read_table(output).column("id").to_pylist()) == [1, 2, 3, 4]
    answer = cli(
        "read",
        uri,
        "--output",
        output,
        "--version",
        0,
        "--columns",
        "id,day",
        "--where",
        "day = 'a'",
        "--json",
        "--force",
    ).json
    assert answer == {"output": str(output), "num_rows": 1, "version": 0}
    assert pq.read_table(output).to_pylist() == [{"id": 1, "day": "a"}]
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize(
    "output",
    [
        "t/_delta_log/{commit}", "t/{data}", "t/new.parquet", "t/_delta_log/new.parquet", "t/day=a/new.parquet",
        "link/new.parquet",
        "other/../t/{data}", "log/{commit}", "log/x.parquet", "inside/{name}", "other/../t/_delta_log/_sidecars/x",
        "unrelated/00000000000000000007.json", "unrelated/00000000000000000007.checkpoint.parquet",
    ],
)  # fmt: skip
def test_no_output_lies_in_a_table(
    cli: Any, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, force: list[str]
) -> None:
    """Of the table that is read, or of another, by whatever way."""
    root = tmp_path / "t"
    shutil.copytree(uri, root)
    (root / "_delta_log" / "_sidecars").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "unrelated").mkdir()
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "log").symlink_to(root / "_delta_log")
    data = next(root.glob("day=a/*.parquet"))
    (tmp_path / "inside").symlink_to(data.parent)
    output = output.format(commit=f"{0:020d}.json", data=data.relative_to(root), name=data.name)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    for path in (output, str(tmp_path / output)):
        for command in (["read", uri], ["read", str(root)], ["changes", uri, "--from", "0"]):
            done = cli(*command, "--output", path, *force)
            assert (done.code, done.stderr[:23]) == (1, "error[INVALID_REQUEST]:"), done
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_nothing_is_replaced_without_force(cli: Any, uri: str, tmp_path: Path, kind: str) -> None:
    output, mine = tmp_path / "o.parquet", tmp_path / "mine"
    mine.write_bytes(b"mine")
    if kind == "file":
        output.write_bytes(b"mine")
    else:
        output.symlink_to(mine if kind == "link" else tmp_path / "nothing")
    for command in (["read", uri], ["changes", uri, "--from", "0"]):
        assert cli(*command, "--output", output).stderr.startswith("error[INVALID_REQUEST]: ")
        assert mine.read_bytes() == b"mine" and output.is_symlink() == (kind != "file")
    assert cli("read", uri, "--output", output, "--force").code == 0
    assert pq.read_table(output).num_rows == 4
    assert mine.read_bytes() == b"mine"


def test_changes(cli: Any, uri: str, tmp_path: Path) -> None:
    output = tmp_path / "changes.parquet"
    assert cli("changes", uri, "--from", 1, "--output", output, "--json").json["num_rows"] == 1
    assert pq.read_table(output).to_pylist()[0]["_change_type"] == "insert"


def test_history_and_txns(cli: Any, uri: str) -> None:
    entries = cli("history", uri, "--json").json
    assert [(e["version"], e["operation"], e["user_metadata"]) for e in entries] == [
        (1, "WRITE", "second"),
        (0, "WRITE", None),
    ]
    assert len(cli("history", uri, "--limit", 1, "--json").json) == 1
    assert "WRITE" in cli("history", uri).stdout
    (txn,) = cli("txns", uri, "--json").json
    assert (txn["app_id"], txn["version"]) == ("job", 7)
    assert "job" in cli("txns", uri).stdout


def test_maintenance(cli: Any, uri: str) -> None:
    merged = cli("optimize", uri, "--json").json
    assert merged["version"] == 2
    assert int(merged["operation_metrics"]["numRemovedFiles"]) == 2
    assert cli("optimize", uri).stdout == "Nothing to merge\n"
    assert cli("checkpoint", uri, "--json").json == {"version": 2}
    assert cli("vacuum", uri, "--dry-run").stdout == "0 files (0 B) would be deleted\n"
    listed = cli("vacuum", uri, "--dry-run", "--retention-hours", 0, "--force", "--json").json
    assert (listed["num_files"], listed["dry_run"], len(listed["paths"])) == (2, True, 2)
    hours = ("--retention-hours", 0, "--force")
    for more in ((), ("--json",)):
        by_sql = cli("sql", f"VACUUM delta.`{uri}` DRY RUN", *more).stdout
        assert by_sql == cli("vacuum", uri, "--dry-run", *more).stdout
    assert cli("sql", f"FSCK REPAIR TABLE delta.`{uri}`").stdout == "Nothing to change\n"
    assert cli("vacuum", uri, *hours, "--json").json["num_files"] == 2
    assert cli("optimize", uri, "--target-file-size", "1kb", "--where", "day = 'b'").code == 0


def test_a_dry_run_of_optimize(cli: Any, uri: str) -> None:
    told = cli("optimize", uri, "--dry-run", "--isolation", "Serializable", "--json").json
    assert (told["version"], told["dry_run"], told["operation_metrics"]["numRemovedFiles"]) == (2, True, 2)
    assert [sum(kind in action for action in told["actions"]) for kind in ("add", "remove")] == [1, 2]
    assert cli("optimize", uri, "--dry-run").stdout.startswith("Version 2 would be committed: ")
    assert DeltaTable(uri).version() == 1


def test_txns_of_a_version(cli: Any, uri: str) -> None:
    DeltaTable(uri).append(pa.table({"day": ["a"], "id": [5]}), txn=("job", 8))
    assert [cli("txns", uri, "--version", v, "--json").json[0]["version"] for v in (0, 1, 2)] == [7, 7, 8]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["snapshot", "{tmp}/nothing"], "TABLE_NOT_FOUND"),
        (["snapshot", "{uri}", "--version", "9"], "VERSION_NOT_FOUND"),
        (["snapshot", "{uri}", "--timestamp", "1999-01-01"], "TIMESTAMP_OUT_OF_RANGE"),
        (["snapshot", "{uri}", "--timestamp", "noon"], "INVALID_REQUEST"),
        (["snapshot", "nowhere://x"], "UNSUPPORTED_STORE"),
        (["read", "{uri}", "--output", "{tmp}/o", "--columns", "nope"], "COLUMN_NOT_FOUND"),
        (["read", "{uri}", "--output", "{tmp}/o", "--where", "day ="], "INVALID_EXPRESSION"),
        (["read", "{uri}", "--output", "{tmp}/no/o"], "STORAGE_ERROR"),
        (["read", "{uri}", "--output", "{tmp}"], "STORAGE_ERROR"),
        (["changes", "{uri}", "--from", "9", "--output", "{tmp}/o"], "VERSION_NOT_FOUND"),
        (["vacuum", "{uri}", "--retention-hours", "0"], "INVALID_REQUEST"),
        (["optimize", "{uri}", "--where", "id = 1"], "INVALID_EXPRESSION"),
        (["txns", "{tmp}/nothing"], "TABLE_NOT_FOUND"),
        (["history", "{tmp}/nothing"], "TABLE_NOT_FOUND"),
        (["checkpoint", "{tmp}/nothing"], "TABLE_NOT_FOUND"),
    ],
)
def test_errors(cli: Any, uri: str, tmp_path: Path, arguments: list[str], code: str) -> None:
    arguments = [a.format(uri=uri, tmp=tmp_path) for a in arguments]
    failed = cli(*arguments)
    assert failed.code == 1
    assert failed.stdout == ""
    assert failed.stderr.startswith(f"error[{code}]: ")
    assert 1 <= failed.stderr.count("\n") <= 3 and "\n\n" not in failed.stderr
    assert "secret" not in failed.stderr
    as_json = cli(*arguments, "--json")
    assert (as_json.code, as_json.stderr) == (1, "")
    error = as_json.json["error"]
    assert set(error) == {"code", "message", "context"}
    assert error["code"] == code
    assert f"error[{code}]: {error['message']}\n" == failed.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["snapshot"],
        ["nonsense"],
        ["snapshot", "x", "-o", "secret"],
        ["show", "x", "--engine", "flink"],
        ["show", "x", "--columns", "`open"],
        ["--what"],
        ["snapshot", "x", "y"],
        ["show", "x", "-n", "-1"],
        ["snapshot", "x", "--vers", "1"],
        ["read", "x"],
        ["snapshot", "x", "--version", "one"],
        ["vacuum", "--what"],
    ],
)
def test_command_lines_that_make_no_sense(cli: Any, arguments: list[str]) -> None:
    failed = cli(*arguments)
    assert failed.code == 2
    assert failed.stdout == ""
    assert failed.stderr.startswith("error[USAGE]: ") and failed.stderr.count("\n") == 1
    assert "secret" not in failed.stderr
    assert cli(*arguments, "--json").json["error"]["code"] == "USAGE"


def test_options_stand_anywhere_and_values_may_begin_with_a_dash(cli: Any, uri: str) -> None:
    assert cli("show", "--json", "--limit", 1, uri, "--where", "-id < -3").json["rows"] == [{"day": "a", "id": 4}]
    assert cli("sql", "--dry-run", "--", f"DELETE FROM delta.`{uri}` WHERE -id < -3").code == 0


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["read", "--help"], ["sql", "-h"]])
def test_help(cli: Any, arguments: list[str]) -> None:
    shown = cli(*arguments)
    assert (shown.code, shown.stderr) == (0, "")
    assert shown.stdout.startswith("Usage: delta-orch")


def test_a_command_that_is_almost_right(cli: Any) -> None:
    told = cli("snapshto", "x").stderr
    assert "No such command 'snapshto'" in told
    # From click 8.4 on.
    assert "Did you mean 'snapshot'?" in told or version("click") < "8.4"


def test_values_do_not_steer_the_terminal(cli: Any, tmp_path: Path) -> None:
    DeltaTable(tmp_path / "t").append(pa.table({"a": ["\x1b[2Jx"]}), name="\x1b]0;x\x07")
    for command in ("show", "snapshot"):
        assert "\x1b" not in cli(command, tmp_path / "t").stdout


def test_a_defect_is_told_as_one(cli: Any, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(DeltaTable, "snapshot", broken)
    failed = cli("snapshot", uri)
    assert (failed.code, failed.stdout) == (70, "")
    assert failed.stderr.startswith("error[INTERNAL]: ZeroDivisionError: by zero.\nThis is a defect")
    assert cli("snapshot", uri, "--json").json["error"]["code"] == "INTERNAL"
    monkeypatch.setenv("DELTA_ORCH_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run(["snapshot", uri])


def test_a_failed_read_leaves_the_output_as_it_was(cli: Any, uri: str, tmp_path: Path) -> None:
    output = tmp_path / "rows.parquet"
    output.write_bytes(b"mine")
    table = DeltaTable(uri)
    victim = table.snapshot().files(["path"]).column("path")[0].as_py()
    Path(table.store.resolve(victim)).unlink()
    assert cli("read", uri, "--output", output, "--force").stderr.startswith("error[MISSING_FILE]: ")
    assert output.read_bytes() == b"mine"
    assert {p.name for p in tmp_path.iterdir()} == {"flights", "rows.parquet"}


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["show", "URI"], ["files", "URI", "--json"], ["snapshot", "URI/none", "--json"]],
    ids=" ".join,
)
def test_a_reader_that_has_gone_is_no_error(arguments: list[str], buffered: bool, uri: str) -> None:
    command = [str(Path(sys.executable).with_name("delta-orch")), *(a.replace("URI", uri) for a in arguments)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, env=environment)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_installed_command_starts_without_pyarrow(uri: str) -> None:
    code = (
        "import sys; from delta_orch.cli.main import run\n"
        "try: run(['--help'])\n"
        "except SystemExit as e: assert not e.code\n"
        "heavy = {'pyarrow', 'pandas', 'duckdb', 'pyspark', 'sqlglot', 'dagster', 'airflow'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        [Path(sys.executable).with_name("delta-orch"), "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("delta-orch ")
