"""What the first call in a fresh process may import: an orchestrated task is such a process.

Each call has the libraries and the modules of pyarrow it may load beyond `import pyarrow`, and the number of our own
modules. What is loaded less is no failure; then the budget here is to be lowered.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import pyarrow as pa
import pytest

import delta_orch
from delta_orch import DeltaTable
from delta_orch.testing import build_table
from tests.families import family

COMPUTE = frozenset({"_compute"})
PARQUET = frozenset({"_azurefs", "_fs", "_gcsfs", "_hdfs", "_parquet", "_s3fs", "fs", "parquet", "parquet.core"})
HEAVY = frozenset({"asyncio", "http", "multiprocessing", "sqlite3", "unittest", "xml"})
"""Of the standard library: what none of the calls needs."""


@dataclass(frozen=True)
class Budget:
    """A first call.

    Attributes:
        code: Knows `URI`, a table of two files, and `ROWS`, an Arrow table.
        libraries: What it may load that is neither ours nor the standard library's nor pyarrow.
        arrow: The modules of pyarrow it may load beyond those that `import pyarrow` does.
        own: The number of our own modules, at most.
    """

    code: str
    own: int
    libraries: frozenset[str] = frozenset()
    arrow: frozenset[str] = frozenset()


JSON = frozenset({"orjson"})
BUDGETS = {
    "import": Budget("import delta_orch", own=2),
    "open": Budget("from delta_orch import DeltaTable\nDeltaTable(URI).version()", own=38, libraries=JSON),
    "snapshot": Budget(
        "from delta_orch import DeltaTable\ns = DeltaTable(URI).snapshot()\ns.schema, s.num_files, s.properties",
        own=42,
        libraries=JSON,
        arrow=COMPUTE | PARQUET,
    ),
    "scan": Budget(
        "from delta_orch import DeltaTable\n"
        "assert DeltaTable(URI).snapshot().scan(where='id > 2').to_arrow().num_rows == 1",
        own=80,
        libraries=JSON | {"numpy"},
        arrow=COMPUTE | PARQUET,
    ),
    "append": Budget(
        "from delta_orch import DeltaTable\nDeltaTable(URI).append(ROWS)",
        own=104,
        libraries=JSON,
        arrow=COMPUTE | PARQUET | {"_json", "json"},
    ),
    "command line": Budget(
        "import sys\nfrom delta_orch.cli.main import run\nsys.argv = ['delta-orch', 'snapshot', URI]\n"
        "try:\n    run()\nexcept SystemExit as e:\n    assert not e.code",
        own=54,
        libraries=JSON | {"click"},
        arrow=COMPUTE | PARQUET,
    ),
}


def modules_after(code: str) -> set[str]:
    """All that a fresh process has loaded."""
    code = f"{code}\nimport sys\nprint('\\nLOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize("name", BUDGETS)
def test_a_first_call_loads_what_it_needs_and_no_more(name: str, tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([3], pa.int64()), "s": pa.array(["c"])})
    build_table(tmp_path / "table", rows.slice(0, 0), rows, rows.set_column(0, "id", pa.array([1], pa.int64())))
    budget = BUDGETS[name]
    # What the user's own `pa.table` loads is not the call's.
    before = f"URI = {str(tmp_path / 'table')!r}"
    if name != "import":
        before += "\nimport pyarrow as pa"
    if "ROWS" in budget.code:
        before += "\nROWS = pa.table({'id': pa.array([5]), 's': pa.array(['x'])})"
    loaded = modules_after(f"{before}\n{budget.code}") - modules_after(before)
    own = {m for m in loaded if m.partition(".")[0] == "delta_orch"}
    arrow = {m.removeprefix("pyarrow.") for m in loaded if m.startswith("pyarrow.")}
    top = {m.partition(".")[0] for m in loaded - own if not m.startswith(("_sysconfigdata", "_cython", "_cyutility"))}
    libraries = top - set(sys.stdlib_module_names) - {"pyarrow"}
    assert libraries <= budget.libraries, sorted(libraries - budget.libraries)
    assert arrow <= budget.arrow, sorted(arrow - budget.arrow)
    assert not top & HEAVY
    assert len(own) <= budget.own


def test_using_a_table_loads_no_orchestrator_and_no_pandas(tmp_path: Path) -> None:
    loaded = modules_after(
        "import sys, delta_orch\n"
        f"table = delta_orch.DeltaTable({str(tmp_path)!r})\n"
        "assert not table.exists()\n"
        'table.create(\'{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}\')\n'
        "assert table.snapshot().scan().plan().files.num_rows == 0\n"
    )
    assert not {"pyspark", "dagster", "airflow", "pandas", "polars", "deltalake"} & {
        m.partition(".")[0] for m in loaded
    }


CHANGES = {
    "scan": "table.snapshot().scan(where='id > 1').to_arrow()",
    "append": "table.append(rows)",
    "overwrite": "table.overwrite(rows)",
    "delete": "table.delete('id = 2')",
    "update": "table.update({'s': \"concat(s, 'x')\"}, 'id > 2')",
    "merge": "table.upsert(rows, ['id'])",
    "change feed": "table.changes(starting_version=1).to_arrow()",
    "optimize": "table.optimize()",
    "restore": "table.restore(version=1)",
    "vacuum": "table.vacuum(dry_run=True)",
}


@family("name", list(CHANGES), every=5)
def test_a_table_whose_files_were_replaced_loads_no_pandas(name: str, tmp_path: Path) -> None:
    """Nor `pyarrow.compute`, which takes a first call half as long as opening a table."""
    table = DeltaTable(tmp_path / "table")
    for ids in ([1, 2, 3], [4, 5, 6]):
        told = {"delta.enableChangeDataFeed": "true"} if ids[0] == 1 else None
        table.append(pa.table({"id": ids, "s": pa.array([str(i) for i in ids])}), properties=told)
    table.delete("id = 1")
    table.update({"s": "'y'"}, "id = 4")
    # Rows without `pa.table`, which loads pandas itself.
    code = f"from delta_orch import DeltaTable\ntable = DeltaTable({str(tmp_path / 'table')!r})\n"
    code += "rows = table.snapshot(version=0).scan().to_arrow()\n"
    assert not {"pandas", "pyarrow.compute"} & modules_after(code + CHANGES[name])


@pytest.mark.parametrize("name", ["append", "scan"])
def test_a_warm_call_goes_through_few_functions(name: str, tmp_path: Path) -> None:
    """A reader follows them in one sitting (docs/architecture.md). Comprehensions count as functions in Python 3.11."""
    table, rows = DeltaTable(tmp_path / "table"), pa.table({"id": [1], "s": ["a"]})
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(Path(delta_orch.__file__).parent)):
            called.add(frame.f_code)

    calls = {
        "append": lambda: table.append(rows),
        "scan": lambda: table.snapshot().scan(where="id = 1").to_arrow(),
    }
    for _ in range(3):
        table.append(rows)
        table.snapshot().scan(where="id = 1").to_arrow()
    if name == "scan":
        table.append(rows)
    profiler = sys.getprofile()
    sys.setprofile(note)
    try:
        calls[name]()
    finally:
        sys.setprofile(profiler)
    assert 100 < len(called) <= 270


def test_the_public_names() -> None:
    assert set(delta_orch.__all__) <= set(dir(delta_orch))
    for name in delta_orch.__all__:
        assert getattr(delta_orch, name) is not None


WITHOUT_EXTRAS = """
import sys
for name in ("duckdb", "sqlglot", "polars", "pyspark", "dagster", "airflow", "deltalake"):
    sys.modules[name] = None
import pyarrow as pa
from delta_orch import DeltaTable
from delta_orch.errors import ConstraintViolationError
def rows(*ids):
    return pa.table({"id": pa.array(ids, pa.int64()), "day": [f"d{i % 3}" for i in ids], "x": [i / 2 for i in ids]})
def ids(**scan):
    return sorted(table.snapshot().scan(**scan).to_arrow()["id"].to_pylist())
table = DeltaTable(URI)
table.append(rows(1, 2, 3), partition_by=["day"])
table.append(rows(4, 5, 6))
table = DeltaTable(URI)
assert table.version() == 1
assert ids() == [1, 2, 3, 4, 5, 6]
assert ids(where="id > 2 AND day = 'd1' OR x IN (1.0)") == [2, 4]
assert ids(where="day LIKE 'd%' AND NOT (id BETWEEN 2 AND 5) AND x IS NOT NULL") == [1, 6]
table.alter().add_constraint("positive", "id > 0 AND x < 100").commit()
try:
    table.append(rows(7, -1))
except ConstraintViolationError as e:
    assert "positive" in str(e), e
else:
    raise AssertionError("the constraint holds")
assert ids() == [1, 2, 3, 4, 5, 6]
table.overwrite(rows(13, 16), replace_where="day = 'd1'")
assert ids() == [2, 3, 5, 6, 13, 16]
table.overwrite(rows(20), replace_where="id >= 5 AND id <= 20")
assert ids() == [2, 3, 20]
assert table.optimize().version is not None
assert ids() == [2, 3, 20]
table.update({"id": "id * 2 + 1", "x": "0.5"}, "id > 2")
assert ids() == [2, 7, 41]
table.delete("id = 2")
assert ids(where="x = 0.5") == [7, 41]
"""


def test_the_base_install_is_enough(tmp_path: Path) -> None:
    """Plain use takes no extra, and no parser for what the plain one reads."""
    loaded = modules_after(f"URI = {str(tmp_path / 'table')!r}\n{WITHOUT_EXTRAS}")
    assert "delta_orch.engines.local.engine" in loaded
