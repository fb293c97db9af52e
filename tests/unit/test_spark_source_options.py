"""The options of the format `delta_orch`. No Spark runs here."""

from __future__ import annotations

import pytest

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import TxnId
from delta_orch.spark_source.options import parse_options, parse_write_options


def test_rows() -> None:
    options = parse_options(
        {
            "PATH": "/t",
            "versionasof": "3",
            "columns": "a, b",
            "where": "a = 1",
            "rowTracking": "TRUE",
            "maxPartitionBytes": "10",
            "storageOptions": '{"key": "v"}',
        }
    )
    assert (options.path, options.version, options.timestamp) == ("/t", 3, None)
    assert (options.columns, options.where, options.row_tracking) == (("a", "b"), "a = 1", True)
    assert (options.max_partition_bytes, dict(options.storage_options), options.changes) == (10, {"key": "v"}, None)
    assert parse_options({"path": "/t", "columns": '["a, b", "c"]'}).columns == ("a, b", "c")
    assert parse_options({"path": "/t", "timestamp": "2020-01-01"}).timestamp == "2020-01-01"


def test_changes() -> None:
    options = parse_options({"path": "/t", "readChangeData": "true", "startingVersion": "1", "endingTimestamp": "x"})
    assert options.changes == {
        "starting_version": 1,
        "ending_version": None,
        "starting_timestamp": None,
        "ending_timestamp": "x",
        "allow_out_of_range": False,
    }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "path of the table is missing"),
        ({"path": "/t", "mode": "x"}, "no option 'mode'"),
        ({"path": "/t", "version": "-1"}, "must be a number"),
        ({"path": "/t", "version": "1", "versionAsOf": "1"}, "two names"),
        ({"path": "/t", "rowTracking": "yes"}, "true or false"),
        ({"path": "/t", "readChangeFeed": "true", "startingVersion": "1", "columns": "a"}, "only when rows"),
        ({"path": "/t", "endingVersion": "1"}, "only when changes"),
        ({"path": "/t", "columns": "[1]"}, "columns"),
        ({"path": "/t", "storageOptions": '{"secret": 1}'}, "storageOptions"),
        ({"path": "/t", "storageOptions": "secret"}, "storageOptions"),
        ({"path": "/t", "owner": "me", "provider": "delta_orch"}, "catalog"),
        ({"path": "/t", "readChangeFeed": "true"}, "either startingVersion or startingTimestamp"),
        ({"path": "/t", "readChangeFeed": "true", "startingVersion": "1", "startingTimestamp": "x"}, "Both are given"),
        ({"paths": '["/t", "/u"]'}, "one table"),
    ],
    ids=[
        *("empty", "unknown", "number", "twice", "boolean", "feed", "rows", "columns", "texts", "json", "catalog"),
        *("no start", "two starts", "paths"),
    ],
)
def test_what_does_not_fit(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text) as raised:
        parse_options(options)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "saveAsTable and INSERT INTO need one"),
        ({"path": "/t", "nope": "1"}, "no option 'nope'"),
        ({"path": "/t", "txnAppId": "a"}, "belong together"),
        ({"path": "/t", "mergeSchema": "true", "overwriteSchema": "true"}, "exclude each other"),
        ({"path": "/t", "partitionOverwriteMode": "some"}, "static or dynamic"),
        ({"path": "/t", "checkpointLocation": "/c"}, "no option 'checkpointLocation'"),
        ({"path": "/t", "compression": "gzip"}, "delta.parquet.compression.codec"),
    ],
    ids=["empty", "unknown", "half_txn", "schemas", "partitions", "stream", "instead"],
)
def test_writes_that_do_not_fit(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        parse_write_options(options)


def test_writes() -> None:
    given = {"PATH": "/t", "partitionby": "a, b", "delta.appendOnly": "true", "TXNAPPID": "x", "txnversion": "3"}
    request = parse_write_options(given)
    assert dict(request.definition) == {"partition_by": ("a", "b"), "properties": {"delta.appendOnly": "true"}}
    assert request.txn == TxnId("x", 3)
    assert parse_write_options({"path": "/t", "checkpointLocation": "/c"}, is_stream=True).path == "/t"
    with pytest.raises(InvalidRequestError, match="batch id"):
        parse_write_options({"path": "/t", "txnVersion": "1"}, is_stream=True)
    for option in ({"replaceWhere": "a = 1"}, {"partitionOverwriteMode": "DYNAMIC"}, {"overwriteSchema": "true"}):
        with pytest.raises(InvalidRequestError, match="those of an overwrite"):
            parse_write_options({"path": "/t", **option}).ensure_fits(is_overwrite=False)
