"""What the package is made of: a bill of materials (CycloneDX 1.5) of the installed dependencies, their licenses,
whether they are the pinned versions, and whether a database knows vulnerabilities of the pins.

    python scripts/supply_chain.py sbom build/sbom.json
    python scripts/supply_chain.py licenses
    python scripts/supply_chain.py audit
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGE = "delta-orch"
_NOT_SHIPPED = ("dev", "docs")
_NO_DATABASE = re.compile(r"ConnectionError|Max retries|resolve host|ServiceError|timed out", re.IGNORECASE)


def pins() -> dict[str, str]:
    """The versions that tests run with."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    split = (line.partition("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version.split(";")[0].strip() for name, _, version in split}


def requirements() -> Iterator[tuple[str, Requirement]]:
    """What the package asks for, and the extra that brings it ("" for none)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra, lines in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        yield from ((extra, Requirement(line)) for line in lines if extra not in _NOT_SHIPPED)


def direct() -> dict[str, str]:
    """The dependencies of the package by name, and the first extra that brings each ("" for none)."""
    return {canonicalize_name(needed.name): extra for extra, needed in reversed([*requirements()])}


def closure() -> Iterator[metadata.Distribution]:
    """Every installed distribution that the package with all of its extras needs."""
    pending, seen = [needed for _, needed in requirements()], set[tuple[str, str]]()
    while pending:
        needed = pending.pop()
        name = canonicalize_name(needed.name)
        new = [extra for extra in ("", *needed.extras) if (name, extra) not in seen]
        if not new:
            continue
        distribution = metadata.distribution(name)
        if all(known != name for known, _ in seen):
            yield distribution
        seen |= {(name, extra) for extra in new}
        below = map(Requirement, distribution.requires or ())
        pending += [r for r in below if r.marker is None or any(r.marker.evaluate({"extra": extra}) for extra in new)]


def license_of(distribution: metadata.Distribution) -> str:
    """What a distribution says of its license, in a line."""
    said = distribution.metadata
    text = said.get("License-Expression") or next(
        (c.rpartition(" :: ")[2] for c in said.get_all("Classifier") or () if c.startswith("License ::")), None
    )
    return str(text or (said.get("License") or "not said").strip().splitlines()[0])[:60]


def bill() -> dict[str, object]:
    components = [
        {
            "type": "library",
            "name": d.name,
            "version": d.version,
            "purl": f"pkg:pypi/{canonicalize_name(d.name)}@{d.version}",
            "bom-ref": f"pkg:pypi/{canonicalize_name(d.name)}@{d.version}",
            "licenses": [{"license": {"name": license_of(d)}}],
        }
        for d in sorted(closure(), key=lambda d: canonicalize_name(d.name))
    ]
    me = {"type": "library", "name": PACKAGE, "version": metadata.version(PACKAGE), "bom-ref": PACKAGE}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"component": me},
        "components": components,
    }


def audit() -> int:
    """0 where the pins are installed and nothing is known against them; 1 otherwise. Says what was not checked."""
    expected = pins()
    wrong = [d for d in closure() if expected.get(canonicalize_name(d.name)) != d.version]
    for d in wrong:
        print(f"{d.name} {d.version} is installed, constraints.txt pins {expected.get(canonicalize_name(d.name))}")
    tool = shutil.which("pip-audit")
    if tool is None:
        print("SKIPPED: known vulnerabilities, as pip-audit is not installed")
        return bool(wrong)
    command = [tool, "--no-deps", "--disable-pip", "-r", str(ROOT / "constraints.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and _NO_DATABASE.search(done.stderr):
        print("SKIPPED: known vulnerabilities, as no database can be reached")
        return bool(wrong)
    print(done.stdout, done.stderr)
    # pip-audit ends with 0 even if the database knows none of the packages.
    if unaudited := len(re.findall(r"could not be audited", done.stdout)):
        print(f"SKIPPED: known vulnerabilities of {unaudited} packages, as no database has them")
    return bool(wrong or done.returncode)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["sbom", path]:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(json.dumps(bill(), indent=1) + "\n", encoding="utf-8")
        case ["licenses"]:
            for d in sorted(closure(), key=lambda d: canonicalize_name(d.name)):
                print(f"{d.name} {d.version}: {license_of(d)}")
        case ["audit"]:
            return audit()
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
