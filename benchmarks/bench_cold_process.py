"""A whole process from its start: what an orchestrated task, a sensor in a subprocess or a command pays each time."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

TITLE = "Fresh processes on a table of 20 files: open, a selective scan, append of one row, `delta-orch snapshot`"
RESULTS_MAY_DIFFER = True
FILES = 20
ROWS_PER_FILE = 1000
SHOTS = 5
"""Processes a round: their mean is what counts."""

Run = Callable[[Path], object]

OPEN = "from delta_orch import DeltaTable; print(DeltaTable({table!r}).version())"
OPEN_DELTALAKE = "from deltalake import DeltaTable; print(DeltaTable({table!r}).version())"
SCAN = (
    "from delta_orch import DeltaTable; rows = DeltaTable({table!r}).snapshot().scan(where='id between 5 and 9');"
    "print(rows.to_duckdb().aggregate('count(*), sum(a)').fetchall())"
)
SCAN_ARROW = (
    "from delta_orch import DeltaTable; rows = DeltaTable({table!r}).snapshot().scan(where='id between 5 and 9');"
    "print(rows.to_arrow().num_rows)"
)
SCAN_DUCKDB = (
    "import pyarrow, duckdb; print(duckdb.sql(\"select count(*), sum(a) from read_parquet('{table}/*.parquet') "
    'where id between 5 and 9").fetchall())'
)
SCAN_DELTALAKE = (
    "from deltalake import DeltaTable, QueryBuilder; rows = QueryBuilder().register('t', DeltaTable({table!r}));"
    "print(rows.execute('select count(*), sum(a) from t where id between 5 and 9').read_all())"
)
APPEND = (
    "import pyarrow as pa; from delta_orch import DeltaTable;"
    "print(DeltaTable({table!r}).append(pa.table({{'id': [1], 'a': [1.5]}})).version)"
)
APPEND_DELTALAKE = (
    "import pyarrow as pa; from deltalake import write_deltalake;"
    "write_deltalake({table!r}, pa.table({{'id': [1], 'a': [1.5]}}), mode='append')"
)
APPEND_PYARROW = (
    "import uuid, pyarrow as pa, pyarrow.parquet as pq;"
    "pq.write_table(pa.table({{'id': [1], 'a': [1.5]}}), f'{table}/{{uuid.uuid4()}}.parquet')"
)


def prepare(directory: Path) -> Path:
    """A table of 20 files of 1,000 rows, each with a range of ids of its own."""
    table = directory / "cold_process"
    if not table.exists():
        import pyarrow as pa

        from delta_orch import DeltaTable

        building = DeltaTable(directory / "cold_process.building")
        for number in range(FILES):
            ids = list(range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE))
            building.append(pa.table({"id": ids, "a": [1.5] * ROWS_PER_FILE}))
        (directory / "cold_process.building").rename(table)
    return table


def _python(code: str) -> Callable[[], Run]:
    def contestant() -> Run:
        copy = Path(tempfile.mkdtemp(dir=Path(sys.argv[3]).parent)) / "table"
        shutil.copytree(sys.argv[3], copy)
        return lambda _: _shots([sys.executable, "-c", code.format(table=str(copy))], copy)

    return contestant


def _command() -> Run:
    program = str(Path(sys.executable).with_name("delta-orch"))
    return lambda table: _shots([program, "snapshot", str(table)], None)


def _shots(command: list[str], copy: Path | None) -> str:
    for _ in range(SHOTS):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    if copy is not None:
        shutil.rmtree(copy.parent)
    return f"{SHOTS} processes: {' '.join(done.stdout.split())[:24]}"


CONTESTANTS: dict[str, Callable[[], Run]] = {
    "floor: import pyarrow": _python("import pyarrow"),
    "open: delta_orch": _python(OPEN),
    "open: deltalake": _python(OPEN_DELTALAKE),
    "scan: bare DuckDB (floor)": _python(SCAN_DUCKDB),
    "scan: delta_orch, DuckDB": _python(SCAN),
    "scan: delta_orch, Arrow": _python(SCAN_ARROW),
    "scan: deltalake": _python(SCAN_DELTALAKE),
    "append: bare pyarrow (floor)": _python(APPEND_PYARROW),
    "append: delta_orch": _python(APPEND),
    "append: deltalake": _python(APPEND_DELTALAKE),
    "command: delta-orch snapshot": lambda: _command(),
}
