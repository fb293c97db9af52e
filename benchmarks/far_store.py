"""`python -m benchmarks.far_store [--delay 0.05]`: verbs on an object store whose every answer takes its time.

An S3 emulator behind a proxy that holds each answer back, as a network does. The emulator itself does one request after
the other, some 20 ms each on a slow core: what is gained beyond that is not seen here.
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Callable

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks import plots
from tests.harness.emulators import s3_emulator
from tests.harness.fault_proxy import Fault, FaultProxy

PARTITIONS = 100
Verb = Callable[[], object]


def rows(first: int = 0, count: int = 3 * PARTITIONS) -> pa.Table:
    """Three rows in each partition."""
    ids = range(first, first + count)
    return pa.table({"id": list(ids), "p": [f"p{i % PARTITIONS:03}" for i in ids], "x": [i / 2 for i in ids]})


def ours(uri: str, endpoint: str) -> dict[str, Verb]:
    from delta_orch import DeltaTable

    options = {"key": "emulator-key", "secret": "emulator-secret", "endpoint_url": endpoint, "region": "us-east-1"}

    def table() -> DeltaTable:
        return DeltaTable(uri, options)

    return {
        "create": lambda: table().append(rows(0, 1), partition_by=["p"]),
        "append one row": lambda: table().append(rows(0, 1)),
        f"append to {PARTITIONS} partitions": lambda: table().append(rows()),
        "open": lambda: table().snapshot().num_files,
        "scan all files": lambda: table().snapshot().scan().to_arrow(),
        "replace one partition": lambda: table().overwrite(rows(0, 1), replace_where="p = 'p000'"),
        "update all files": lambda: table().update({"x": "x + 1"}),
        "upsert a third of the rows": lambda: table().upsert(rows(0, PARTITIONS), ["id"]),
    }


def theirs(uri: str, endpoint: str) -> dict[str, Verb]:
    from deltalake import DeltaTable, write_deltalake

    options = {
        "AWS_ACCESS_KEY_ID": "emulator-key",
        "AWS_SECRET_ACCESS_KEY": "emulator-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "aws_conditional_put": "etag",
    }

    def table() -> DeltaTable:
        return DeltaTable(uri, storage_options=options)

    def write(data: pa.Table, **more: str) -> None:
        write_deltalake(uri, data, storage_options=options, **more)

    def upsert() -> object:
        merge = table().merge(rows(0, PARTITIONS), "t.id = s.id", source_alias="s", target_alias="t")
        return merge.when_matched_update_all().when_not_matched_insert_all().execute()

    return {
        "create": lambda: write_deltalake(uri, rows(0, 1), partition_by=["p"], storage_options=options),
        "append one row": lambda: write(rows(0, 1), mode="append"),
        f"append to {PARTITIONS} partitions": lambda: write(rows(), mode="append"),
        "open": lambda: table().version(),
        "scan all files": lambda: table().to_pyarrow_table(),
        "replace one partition": lambda: write(rows(0, 1), mode="overwrite", predicate="p = 'p000'"),
        "update all files": lambda: table().update({"x": "x + 1"}),
        "upsert a third of the rows": upsert,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.05, help="of each answer, in seconds")
    delay = parser.parse_args().delay
    shown = Table("verb", "delta_orch: s", "requests", "at once", "deltalake: s", "requests", "at once")
    measured: dict[str, dict[str, dict[str, float]]] = {}
    with s3_emulator() as emulator, FaultProxy(emulator.endpoint, slow_s=delay) as proxy:
        sides = [make(emulator.table_uri(str(uuid.uuid4())), proxy.endpoint) for make in (ours, theirs)]
        for name in sides[0]:
            figures: list[str] = []
            measured[plots.FAR_STORE + name] = sides_of_verb = {}
            for contestant, verbs in zip(("delta_orch", "deltalake"), sides, strict=True):
                proxy.clear()
                proxy.at("*", "*", Fault.SLOW, times=1_000_000)
                started = time.monotonic()
                verbs[name]()
                seconds = time.monotonic() - started
                sides_of_verb[contestant] = {"seconds": round(seconds, 2), "requests": len(proxy.seen)}
                figures += [f"{seconds:.2f}", str(len(proxy.seen)), str(proxy.most_at_once)]
            shown.add_row(name, *figures)
    Console(width=100).print(shown)
    plots.record(measured)


if __name__ == "__main__":
    main()
