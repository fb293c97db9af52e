"""The healthy tables that cases damage, as bytes in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.harness.fuzz.own_tables import ROOT_PLACEHOLDER, write_own_tables

LARGEST_BYTES = 400_000
MOST_FILES = 80


@dataclass(frozen=True)
class SeedTable:
    """A healthy table: its files by path, relative to its directory."""

    name: str
    files: Mapping[str, bytes]

    def log_files(self) -> list[str]:
        """The paths of its log."""
        return [path for path in self.files if path.startswith("_delta_log/")]

    def data_files(self) -> list[str]:
        """All other paths."""
        return [path for path in self.files if not path.startswith("_delta_log/")]


def load_corpus(directories: Sequence[Path] = ()) -> list[SeedTable]:
    """The tables this package writes, and every small one found in the directories, always in the same order."""
    with TemporaryDirectory(prefix="delta-fuzz-") as own:
        write_own_tables(Path(own))
        seeds = [_load(path.name, path) for path in sorted(Path(own).iterdir())]
    for directory in directories:
        for log in sorted(directory.rglob("_delta_log")):
            table = _load(str(log.parent.relative_to(directory)), log.parent)
            if len(table.files) <= MOST_FILES and sum(map(len, table.files.values())) <= LARGEST_BYTES:
                seeds.append(table)
    return seeds


def load_variant_pairs(directories: Sequence[Path]) -> list[tuple[bytes, bytes]]:
    """The `….metadata.bin` and `….value.bin` pairs found in the directories."""
    pairs = []
    for directory in directories:
        for metadata in sorted(directory.rglob("*.metadata.bin")):
            value = metadata.with_name(metadata.name.replace(".metadata.", ".value."))
            pairs.append((metadata.read_bytes(), value.read_bytes()))
    return pairs


def load_variant_files(directories: Sequence[Path]) -> list[bytes]:
    """The Parquet files directly in `variant/*`, with a column named `var`."""
    found = (path for directory in directories for path in sorted(directory.glob("variant/*/*.parquet")))
    return [path.read_bytes() for path in found]


def write_table(files: Mapping[str, bytes], directory: Path) -> None:
    """Put a table on disk. A name that a directory has already is left out."""
    root = str(directory)
    for path, data in files.items():
        target = directory / path
        if target.is_dir():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".json") and ROOT_PLACEHOLDER.encode() in data:
            data = data.replace(ROOT_PLACEHOLDER.encode(), root.encode())
        target.write_bytes(data)


def _load(name: str, directory: Path) -> SeedTable:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return SeedTable(name, {str(path.relative_to(directory)): path.read_bytes() for path in files})
