"""`FileSource`: which files it lists, and what it refuses."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from delta_orch import FileSource
from delta_orch.errors import InvalidRequestError
from tests.arrival.landing import Landing

FILES = ["a.json", "b.csv", "d[1].json", "sub/c.json", "sub/deep/d.json", "sub/x y+ü.json", "z/a\nb.json"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**/*", FILES),
        ("*", FILES[:3]),
        ("*.json", ["a.json", "d[1].json"]),
        ("**/*.json", [name for name in FILES if name.endswith(".json")]),
        ("**/d.json", ["sub/deep/d.json"]),
        ("sub/*.json", ["sub/c.json", "sub/x y+ü.json"]),
        ("sub/**/*.json", ["sub/c.json", "sub/deep/d.json", "sub/x y+ü.json"]),
        ("s*b/?.json", ["sub/c.json"]),
        ("[ab].*", ["a.json", "b.csv"]),
        ("[!a].*", ["b.csv"]),
        ("sub/deep/**", ["sub/deep/d.json"]),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    landing = Landing(tmp_path)
    for name in [*FILES, "_a.json", ".b.json", "c.json.tmp", "_sub/a.json", "sub/.git/a.json"]:
        landing.put(name, 1)
    listed = landing.source(pattern=pattern).list_files()
    assert listed["path"].to_pylist() == expected
    assert listed["etag"].null_count == len(expected)


def test_order_and_start(tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    for number, name in enumerate(["c.json", "a.json", "b/x.json"]):
        landing.put(name, 1)
        os.utime(tmp_path / name, (number, number))
    by_time = landing.source(order="modification_time").list_files()
    assert by_time["path"].to_pylist() == ["c.json", "a.json", "b/x.json"]
    assert by_time["modification_time_ms"].to_pylist() == [0, 1000, 2000]
    assert landing.source().list_files("b").column("path").to_pylist() == ["b/x.json", "c.json"]
    assert landing.source().uris(by_time)[0].as_py() == f"{tmp_path.as_uri()}/c.json"


@pytest.mark.parametrize(
    "how",
    [
        {"format": "xml"},
        {"settle_seconds": -1},
        {"max_files": 0},
        {"max_bytes": 0},
        {"on_changed": "replace"},
        {"names_ascend": True, "order": "modification_time"},
        {"names_ascend": True, "on_changed": "replace", "source_file": True},
        {"pattern": "/a"},
        {"pattern": "../a"},
        {"schema_mode": "drop"},
    ],
)
def test_what_does_not_fit_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        FileSource("landing", **{"format": "json", **how})


def test_a_source_travels_and_keeps_its_secrets() -> None:
    source = FileSource("s3://bucket/in", format="json", storage_options={"secret": "hunter2"})
    assert "hunter2" not in repr(source)
    again = pickle.loads(pickle.dumps(source))
    assert (again, again.uri) == (source, "s3://bucket/in")


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.json")).touch()
    with pytest.raises(InvalidRequestError, match="not Unicode"):
        FileSource(tmp_path, format="json").list_files()
