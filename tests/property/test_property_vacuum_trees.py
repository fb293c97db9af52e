"""Vacuum on random trees: tables within tables, links of every kind, strange names. It deletes what lies unreferenced
in this table, all of it, and nothing else."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch import DeltaTable
from delta_orch.protocol.paths import encode_path
from tests.handmade import HandmadeTable

NAMES = st.sampled_from(
    [
        "a",
        "b",
        "p=a",
        "x y",
        "%41",
        "ü",
        "c:d",
        "#?",
        "q'\"",
        "a..b",
        "a..",
        "-",
        "A",
        "\U0001f600",
        "n\nl",
        "day=2024-01-01",
    ]
)
KINDS = st.sampled_from(
    ["loose", "loose", "live", "live", "table", "directory", "link to directory", "link to file", "link outside",
     "hard link", "log only", "link as log", "live by link"]
)  # fmt: skip
STEPS = st.lists(st.tuples(KINDS, NAMES, st.integers(0, 99), st.integers(0, 99)), max_size=14)
ROWS = pa.table({"id": [1]})


class Tree:
    """What was built, and what must become of it."""

    def __init__(self, base: Path) -> None:
        self.made = HandmadeTable(base / "table")
        self.made.create(ROWS.schema)
        self.root = base / "table"
        self.outside = base / "outside"
        self.outside.mkdir()
        (self.outside / "precious").write_bytes(b"x")
        self.own = [self.root]
        """Directories of this table alone."""
        self.foreign: list[Path] = []
        self.live: list[Path] = []
        self.loose: set[Path] = set()
        self.tables: list[DeltaTable] = []

    def place(self, name: str, at: int) -> Path:
        return self.own[at % len(self.own)] / name

    def build(self, kind: str, name: str, at: int, other: int) -> None:
        path = self.place(name, at)
        if os.path.lexists(path):
            return
        relative = str(path.relative_to(self.root))
        every = [*self.own, *self.foreign]
        match kind:
            case "directory":
                path.mkdir()
                self.own.append(path)
            case "loose":
                path.write_bytes(b"x")
                self.loose.add(path)
            case "live":
                self.made.commit(self.made.add(relative, ROWS))
                self.live.append(path)
            case "table":
                inner = DeltaTable(path)
                for _ in range(2):
                    inner.overwrite(ROWS, properties={"delta_orch.allowNestedTables": "true"})
                (path / "deeper").mkdir()
                (path / "deeper" / "loose").write_bytes(b"x")
                self.tables.append(inner)
                self.foreign.append(path)
            case "log only":
                (path / "_delta_log").mkdir(parents=True)
                (path / "kept").write_bytes(b"x")
                self.foreign.append(path)
            case "link as log":
                path.mkdir()
                (path / "_delta_log").symlink_to(self.outside)
                (path / "kept").write_bytes(b"x")
                self.foreign.append(path)
            case "link to directory":
                path.symlink_to(every[other % len(every)])
            case "link outside":
                path.symlink_to(self.outside if other % 2 else self.outside / "precious")
                if not other % 2:
                    self.loose.add(path)
            case "link to file" if self.live:
                path.symlink_to(self.live[other % len(self.live)])
            case "hard link" if self.live:
                os.link(self.live[other % len(self.live)], path)
            case "live by link":
                # The log names the file through a link to the directory in which it lies.
                directory = path.with_name(f"{path.name} hot")
                if os.path.lexists(directory):
                    return
                directory.mkdir()
                path.symlink_to(directory)
                add = self.made.add(f"{directory.relative_to(self.root)}/f.parquet", ROWS)
                self.made.commit(replace(add, path=encode_path(f"{relative}/f.parquet")))
                self.live.append(directory / "f.parquet")

    def files(self) -> dict[str, bytes]:
        """Everything there is, but this table's log."""
        found = {}
        for directory, _, names in os.walk(self.root.parent):
            if directory != str(self.root / "_delta_log"):
                found.update({f"{directory}/{name}": os.fsencode(name) for name in names})
        return found


@settings(max_examples=7, deadline=None)
@given(steps=STEPS)
def test_vacuum_deletes_its_own_garbage_only(steps: list[tuple[str, str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as base:
        tree = Tree(Path(base))
        for step in steps:
            tree.build(*step)
        before = tree.files()
        table = tree.made.open()
        result = table.vacuum(0, enforce_retention=False)
        gone = before.keys() - tree.files().keys()
        assert gone == {str(path) for path in tree.loose}
        assert {str(tree.root / path) for path in result.paths} == gone
        assert (tree.outside / "precious").read_bytes() == b"x"
        assert table.snapshot().scan().to_arrow().num_rows == len(tree.live)
        assert all(inner.snapshot(0).scan().to_arrow().equals(ROWS) for inner in tree.tables)
        assert result.is_recorded == bool(gone)
