"""`import delta_orch` is cheap and drags nothing in (it happens in every worker of every orchestrator)."""

from __future__ import annotations

import subprocess
import sys

import delta_orch

FORBIDDEN = ("pyspark", "dagster", "airflow", "pandas", "polars", "duckdb", "pyarrow", "sqlglot", "deltalake", "numpy")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_nothing_heavy() -> None:
    loaded = python("import sys, delta_orch; print(*{m.partition('.')[0] for m in sys.modules})").split()
    assert not set(FORBIDDEN) & set(loaded)


def test_import_takes_less_than_50_ms() -> None:
    code = "import time; t = time.perf_counter(); import delta_orch; print(time.perf_counter() - t)"
    # The best of several: the machine may be busy with something else.
    assert min(float(python(code)) for _ in range(5)) < 0.05


def test_using_a_table_loads_no_orchestrator_and_no_pandas(tmp_path: object) -> None:
    code = (
        "import sys, delta_orch\n"
        f"table = delta_orch.DeltaTable({str(tmp_path)!r})\n"
        "assert not table.exists()\n"
        'table.create(\'{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}\')\n'
        "assert table.snapshot().scan().plan().files.num_rows == 0\n"
        "print(*{m.partition('.')[0] for m in sys.modules})"
    )
    loaded = python(code).split()
    assert not {"pyspark", "dagster", "airflow", "pandas", "polars", "deltalake"} & set(loaded)


def test_the_public_names() -> None:
    assert set(delta_orch.__all__) <= set(dir(delta_orch))
    for name in delta_orch.__all__:
        assert getattr(delta_orch, name) is not None
