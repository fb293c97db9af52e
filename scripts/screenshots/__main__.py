"""Pictures of the real user interfaces, for the docs: `make screenshots`.

    python scripts/screenshots [name of a picture, …]

Each site starts what it shows, on this machine alone, and lists its pages. They are photographed by Qt's browser, which
is installed into `build/screenshots` by pip. Where it cannot be, nothing is photographed, and the last line says why.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
IMAGES = ROOT / "docs" / "images"
BROWSER = ROOT / "build" / "screenshots"
STARTING_S = 300


@dataclass(frozen=True)
class Page:
    """One picture: its name in `docs/images`, the path of the page, what the page says when it is there, and the texts
    or labels of what to press then, one after the other."""

    name: str
    path: str
    wait_for: str
    clicks: tuple[str, ...] = ()
    width: int = 1280
    height: int = 800


@dataclass(frozen=True)
class Site:
    """What is started to be seen: `start` yields its address."""

    start: Callable[[Path], AbstractContextManager[str]]
    pages: tuple[Page, ...]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def serving(command: list[str], address: str, env: dict[str, str]) -> Iterator[str]:
    """A server, from the moment it answers; it ends with the block."""
    log = tempfile.TemporaryFile()  # noqa: SIM115  # it is closed below
    server = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=HERE, start_new_session=True)
    try:
        end = time.monotonic() + STARTING_S
        while True:
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except OSError as error:
                if server.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise SystemExit(f"{command[0]} does not answer: {log.read().decode()[-3000:]}") from error
                time.sleep(0.5)
        yield address
    finally:
        # With the processes that it has started.
        os.killpg(server.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        log.close()


@contextmanager
def dagster(home: Path) -> Iterator[str]:
    """Dagster's web server on the lake of `dagster_lake.py`."""
    env = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "DELTA_ORCH_SCREENSHOTS": str(home / "lake"),
        "PYTHONPATH": str(ROOT),
    }
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    script = str(HERE / "dagster_lake.py")
    subprocess.run([sys.executable, "-W", "ignore", script], env=env, check=True, capture_output=True)
    port = str(free_port())
    program = str(Path(sys.executable).parent / "dagster-webserver")
    command = [program, "-h", "127.0.0.1", "-p", port, "-f", script, "-a", "definitions"]
    with serving(command, f"http://127.0.0.1:{port}", env) as address:
        yield address


@contextmanager
def airflow(home: Path) -> Iterator[str]:
    """Airflow with all its components on the lake of `airflow_lake.py`."""
    port = str(free_port())
    connection = {
        "conn_type": "delta",
        "description": "The lake",
        "extra": {
            "table_root": "s3://lake/tables",
            "storage_options": '{"endpoint_url": "https://s3.example.com"}',
            "secret_storage_options": '{"access_key_id": "lake", "secret_access_key": "hidden"}',
        },
    }
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{HERE}",
        "DELTA_ORCH_SCREENSHOTS": str(home / "lake"),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
    }
    (home / "dags").mkdir()
    (home / "dags" / "sales.py").write_text("from airflow_lake import dag\n")
    program = str(Path(sys.executable).parent / "airflow")
    with serving([program, "standalone"], f"http://127.0.0.1:{port}/api/v2/version", env) as address:
        made = address.removesuffix("/api/v2/version")
        add = [program, "connections", "add", "lake", "--conn-json", json.dumps(connection)]
        subprocess.run(add, env=env, check=True, capture_output=True)
        fill = [sys.executable, "-c", f"import airflow_lake; airflow_lake.fill({made!r})"]
        subprocess.run(fill, env=env, check=True)
        yield made


SITES = {
    "airflow": Site(
        airflow,
        (
            Page("airflow-log", "/dags/sales/runs/2026-02-05/tasks/orders", "Replaced", width=1500),
            Page("airflow-events", "/assets/1", "sales"),
            Page(
                "airflow-connection", "/connections", "delta", clicks=("Edit Connection", "Extra Fields"), height=1200
            ),
        ),
    ),
    "dagster": Site(
        dagster,
        (
            Page("dagster-asset", "/assets/orders?view=overview", "Orders as they come", height=1100),
            Page("dagster-partitions", "/assets/orders?view=partitions", "2026-02-14"),
            Page("dagster-plots", "/assets/daily_sales?view=overview", "Plots", clicks=("Plots",), height=1200),
            Page("dagster-checks", "/assets/orders?view=checks", "break the rule"),
            Page("dagster-maintenance", "/assets/maintenance/orders?view=overview", "Measures files"),
        ),
    ),
}


def browser() -> Path:
    """A Python that has Qt's browser.

    Raises SystemExit: It cannot be had here. That is no failure: the pictures of the last time stay.
    """
    python = BROWSER / "bin" / "python"
    if not python.exists():
        venv.create(BROWSER, with_pip=True)
    works = [python, "-c", "import PyQt6.QtWebEngineWidgets"]
    if subprocess.run(works, capture_output=True).returncode:
        install = [python, "-m", "pip", "install", "-q", "PyQt6-WebEngine"]
        installed = subprocess.run(install, capture_output=True, text=True)
        tried = subprocess.run(works, capture_output=True, text=True)
        if tried.returncode:
            print(f"SKIPPED: no browser. {(installed.stderr + tried.stderr).strip()[-500:]}")
            print("Remedy: pip must reach PyQt6-WebEngine; on Debian it needs libegl1, libnss3, libxkbcommon0")
            raise SystemExit(0)
    return python


def main(names: list[str]) -> None:
    known = {page.name for site in SITES.values() for page in site.pages}
    if unknown := set(names) - known:
        raise SystemExit(f"There is no picture {min(unknown)}; there are {', '.join(sorted(known))}")
    python = browser()
    for site in SITES.values():
        pages = [page for page in site.pages if not names or page.name in names]
        if not pages:
            continue
        with tempfile.TemporaryDirectory() as home, site.start(Path(home)) as address:
            pictures = [
                {
                    "url": address + page.path,
                    "file": str(IMAGES / f"{page.name}.png"),
                    "wait_for": page.wait_for,
                    "clicks": page.clicks,
                    "width": page.width,
                    "height": page.height,
                }
                for page in pages
            ]
            subprocess.run([python, HERE / "browser.py"], input=json.dumps(pictures), text=True, check=True)


main(sys.argv[1:])
