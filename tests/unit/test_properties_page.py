"""docs/properties.md, as the site has it, names every property there is, with its default and what it decides."""

from __future__ import annotations

import re
from pathlib import Path

from delta_orch.protocol.table_properties import _PROPERTIES, INTERNAL_PROPERTIES, TableProperties
from delta_orch.table.protocol_upgrade import is_protocol_request
from scripts.site_reference import expanded

PAGE = expanded((Path(__file__).parents[2] / "docs/properties.md").read_text())
ROWS = dict(re.findall(r"^\| `(delta(?:_orch)?\.[\w.]+)` \| (.*?) ?\| .{10,} \|$", PAGE, re.MULTILINE))


def named_in(paragraph: str) -> set[str]:
    """In the paragraph after this one."""
    (text,) = re.findall(rf"^{paragraph}.*?\n\n(.*?)(?:\n\n|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`(delta\.[\w.]+)`", text)) & set(_PROPERTIES)


def test_every_property_is_in_its_place() -> None:
    assert {key.lower() for key in named_in("The table's own memory")} == INTERNAL_PROPERTIES
    without_effect = {
        key for key in _PROPERTIES if _PROPERTIES[key].attribute is None and key.lower() not in INTERNAL_PROPERTIES
    }
    asked = {key for key in _PROPERTIES if is_protocol_request(key)}
    assert named_in("Asked of the protocol") == asked
    assert named_in("Accepted and kept") == without_effect - asked
    assert set(ROWS) == {k for k in _PROPERTIES if k.lower() not in INTERNAL_PROPERTIES} - without_effect


def test_defaults() -> None:
    defaults = TableProperties()
    for key, shown in ROWS.items():
        attribute = _PROPERTIES[key].attribute
        assert attribute is not None
        default = getattr(defaults, attribute)
        assert (default is None) == (shown == ""), key
        assert default is None or _PROPERTIES[key].parse(shown.strip("`")) == default, key
