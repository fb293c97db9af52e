"""Every kind of store that can be had on this machine. One that cannot is skipped, and the reason is told."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from delta_orch.storage.base import LogStore
from delta_orch.storage.fsspec_store import FsspecStore
from delta_orch.storage.open import open_store
from tests.harness.emulators import EMULATORS, Emulator, EmulatorMissingError

CLOUDS = ("s3", "gcs", "azure")
EXCLUSIVE = ("local", "memory", *CLOUDS)
ALL = (*EXCLUSIVE, "fsspec")


@pytest.fixture(scope="session")
def emulator_named() -> Iterator[Callable[[str], Emulator]]:
    """Starts an emulator when it is first asked for."""
    running: dict[str, Emulator | str] = {}
    with ExitStack() as stack:

        def named(name: str) -> Emulator:
            if name not in running:
                try:
                    running[name] = stack.enter_context(EMULATORS[name]())
                except EmulatorMissingError as e:
                    running[name] = str(e)
            found = running[name]
            if isinstance(found, str):
                pytest.skip(found)
            return found

        yield named


@pytest.fixture(params=CLOUDS)
def emulator(request: pytest.FixtureRequest, emulator_named: Callable[[str], Emulator]) -> Emulator:
    """Each of the object stores."""
    return emulator_named(request.param)


@pytest.fixture
def s3(emulator_named: Callable[[str], Emulator]) -> Emulator:
    return emulator_named("s3")


def _open(kind: str, tmp_path: Path, emulator_named: Callable[[str], Emulator]) -> LogStore:
    name = f"{uuid.uuid4()}/the table"
    if kind == "local":
        return open_store(tmp_path / "the table")
    if kind == "memory":
        return open_store(f"memory://{name}")
    if kind == "fsspec":
        return FsspecStore(f"memory://{name}", {"single_writer": "true"})
    emulator = emulator_named(kind)
    return open_store(emulator.table_uri(name), emulator.storage_options)


@pytest.fixture(params=ALL)
def store(request: pytest.FixtureRequest, tmp_path: Path, emulator_named: Callable[[str], Emulator]) -> LogStore:
    """An empty table's directory in each kind of store."""
    return _open(request.param, tmp_path, emulator_named)


@pytest.fixture(params=EXCLUSIVE)
def shared_store(request: pytest.FixtureRequest, tmp_path: Path, emulator_named: Callable[[str], Emulator]) -> LogStore:
    """The stores that several writers may use at once."""
    return _open(request.param, tmp_path, emulator_named)


@pytest.fixture(params=("local", *CLOUDS))
def process_store(
    request: pytest.FixtureRequest, tmp_path: Path, emulator_named: Callable[[str], Emulator]
) -> LogStore:
    """The stores that several processes see."""
    return _open(request.param, tmp_path, emulator_named)


@pytest.fixture(params=CLOUDS)
def cloud_store(request: pytest.FixtureRequest, tmp_path: Path, emulator_named: Callable[[str], Emulator]) -> LogStore:
    return _open(request.param, tmp_path, emulator_named)
