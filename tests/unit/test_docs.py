"""The pages of the documentation: linked, whole, and true where they name names."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.protocol import types
from delta_orch.protocol.arrow_building import type_to_arrow
from delta_orch.protocol.table_properties import _PROPERTIES, TableProperties
from delta_orch.protocol.type_text import parse_declared_type
from delta_orch.spark_source import options

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / ".github").rglob("*.md")), ROOT / "llms.txt", *DOCS]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def headings(page: Path) -> set[str]:
    """As GitHub makes anchors of them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_of_the_repository_exist(page: Path) -> None:
    for path in re.findall(r"`((?:delta_orch|tests|benchmarks|docs)/[\w./*-]+)`", page.read_text()):
        assert list(ROOT.glob(path.rstrip("/"))), path


def test_the_architecture_names_paths() -> None:
    named = re.findall(r"`(delta_orch/[\w./]+)`", (ROOT / "docs/architecture.md").read_text())
    assert len(named) > 30


def test_the_readme_lists_every_page() -> None:
    listed = (ROOT / "README.md").read_text().partition("## The documentation")[2]
    assert {f"docs/{page.name}" for page in DOCS} <= set(LINK.findall(listed))


def test_python_examples_can_be_compiled() -> None:
    for page in PAGES:
        for example in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            compile(example, page.name, "exec")


def test_every_error_has_a_cause_and_a_remedy() -> None:
    rows = [line.split(" | ") for line in (ROOT / "docs/errors.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    for _, name, means, remedy, _ in rows:
        assert len(means) > 10, name
        assert len(remedy) > 10, name


def test_the_page_of_the_log_names_methods_and_defaults_that_exist() -> None:
    page = (ROOT / "docs/log.md").read_text()
    table = [line.split("|") for line in page.splitlines() if line.startswith("| ") and line.count("|") > 5][1:]
    methods = [re.findall(r"`(\w+)\(\)`", row[4]) for row in table]
    assert len(methods) == 4
    assert all(hasattr(DeltaTable, name) for (name,) in methods)
    defaults = TableProperties()
    for key, default in re.findall(r"`(delta\.\w[\w.]*)` \(([^)]+)\)", page.partition("## Checkpoints")[0]):
        attribute = _PROPERTIES[key].attribute
        assert attribute is not None
        first = default.split(",")[0].strip("`")
        assert getattr(defaults, attribute) == _PROPERTIES[key].parse(first), key


def test_types_are_these_in_arrow() -> None:
    table = (ROOT / "docs/reading.md").read_text().partition("| Delta | Spark SQL | Arrow |")[2].partition("\n\n")[0]
    named: dict[str, str] = {}
    for row in table.splitlines()[2:]:
        of_spark, of_arrow = (re.findall(r"`(.+?)`", cell) for cell in row.split("|")[2:4])
        named |= dict(zip(of_spark, of_arrow, strict=True))
    assert len(named) == 18
    for spark_name, arrow_name in named.items():
        assert str(type_to_arrow(parse_declared_type(spark_name)[0])) == arrow_name, spark_name
    primitive = {t.name for t in vars(types).values() if isinstance(t, types.PrimitiveType)}
    assert primitive <= set(re.findall(r"\w+", "".join(row.split("|")[1] for row in table.splitlines()[2:])))


def test_the_example_of_variants_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs/reading.md").read_text(), re.DOTALL)
        if "delta_orch.variant" in code
    )
    monkeypatch.chdir(tmp_path)
    for line in example.splitlines():
        call, _, told = line.partition("  # ")
        if told:
            example += f"\nshown = {call}\n"
            example += "assert shown == " + told if told.startswith("[") else f"assert told(shown) == {told!r}"
    exec(compile(example, "docs/reading.md", "exec"), {"told": as_told})


def as_told(column: pa.ChunkedArray) -> str:
    return "a string column: " + " and ".join("null" if v is None else v for v in column.to_pylist())


def test_the_page_of_spark_names_every_option() -> None:
    section = (ROOT / "docs/spark.md").read_text().partition("| option |")[2].partition("```sql")[0]
    for name in {*options._NAMES, *options._OTHER_NAMES} - {"path", "readChangeData"}:
        assert f"`{name}`" in section, name


def test_each_word_of_the_glossary_names_its_file() -> None:
    lines = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
    words = [line for line in lines if not line.startswith("| word")]
    assert len(words) > 25
    for line in words:
        (place,) = re.findall(r"\| `([a-z_/]+(?:\.py)?)` \|$", line)
        assert (ROOT / "delta_orch" / place).exists(), line
