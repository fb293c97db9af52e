"""The checkpoint hint and its checksum (PROTOCOL, "Last Checkpoint File", "JSON checksum")."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch.errors import ChecksumMismatchError, CorruptLogError
from delta_orch.protocol.last_checkpoint import (
    LastCheckpoint,
    canonicalize_json,
    checksum_json,
    parse_last_checkpoint,
    serialize_last_checkpoint,
)

# The sample of the protocol's appendix.
SAMPLE = (
    '{"k0":"\'v 0\'", "checksum": "adsaskfljadfkjadfkj", '
    '"k1":{"k2": 2, "k3": ["v3", [1, 2], {"k4": "v4", "k5": ["v5", "v6", "v7"]}]}}'
)
CANONICAL = (
    '"k0"="%27v%200%27","k1"+"k2"=2,"k1"+"k3"+0="v3","k1"+"k3"+1+0=1,"k1"+"k3"+1+1=2,"k1"+"k3"+2+"k4"="v4",'
    '"k1"+"k3"+2+"k5"+0="v5","k1"+"k3"+2+"k5"+1="v6","k1"+"k3"+2+"k5"+2="v7"'
)


def test_the_protocols_own_sample() -> None:
    assert canonicalize_json(SAMPLE) == CANONICAL
    assert checksum_json(SAMPLE) == "6a92d155a59bf2eecbd4b4ec7fd1f875"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('{"a": 10, "b": {"y": null, "x": "s://d.io"} }', '"a"=10,"b"+"x"="s%3A%2F%2Fd.io","b"+"y"=null'),
        ('{"a":[null, "hi ho", 2.71]}', '"a"+0=null,"a"+1="hi%20ho","a"+2=2.71'),
        ('{"n":1.50,"e":1E+2,"t":true,"f":false}', '"e"=1E+2,"f"=false,"n"=1.50,"t"=true'),
        ('{"ü":"ü~-._"}', '"%C3%BC"="%C3%BC~-._"'),
        ('{"empty":{},"none":[],"a":1}', '"a"=1'),
    ],
)  # fmt: skip
def test_canonical_form(text: str, canonical: str) -> None:
    assert canonicalize_json(text) == canonical


def test_what_is_written_is_read_back() -> None:
    last = LastCheckpoint(7, 12, None, 345, 9, {"tags": {"ü": "ä b"}, "checkpointSchema": {"type": "struct"}})
    data = serialize_last_checkpoint(last)
    assert parse_last_checkpoint(data) == last
    assert json.loads(data)["numOfAddFiles"] == 9
    assert "parts" not in json.loads(data)


def test_unknown_fields_are_kept_and_optional_ones_may_be_missing() -> None:
    assert parse_last_checkpoint(b'{"version":3,"size":1,"new":[1]}') == LastCheckpoint(3, 1, extra={"new": [1]})


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 40), st.binary(min_size=1, max_size=3), st.integers(0, 200))
def test_a_changed_byte_never_goes_unnoticed(version: int, size: int, noise: bytes, position: int) -> None:
    data = serialize_last_checkpoint(LastCheckpoint(version, size))
    position %= len(data)
    changed = data[:position] + noise + data[position + len(noise) :]
    try:
        parsed = parse_last_checkpoint(changed)
    except CorruptLogError:
        return
    # Only where the change is none, or leaves the checksum field itself unreadable as one.
    assert parsed == LastCheckpoint(version, size) or b'"checksum"' not in changed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"size":3}',
        b'{"version":"3"}',
        b'{"version":-1}',
        b'{"version":true}',
        b'{"version":1.5}',
        b'{"version":1,"version":2}',
        b'{"version":1,"size":"many"}',
        b'{"version":1,"tags":{"a":1,"a":2}}',
        b'{"version":1,"size":NaN}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_what_is_no_hint(data: bytes) -> None:
    with pytest.raises(CorruptLogError):
        parse_last_checkpoint(data)


def test_checksum_mismatch() -> None:
    data = serialize_last_checkpoint(LastCheckpoint(7, 12)).replace(b'"version":7', b'"version":8')
    with pytest.raises(ChecksumMismatchError):
        parse_last_checkpoint(data)
