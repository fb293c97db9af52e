"""Object stores on this machine, for tests: S3 (moto), Google Cloud Storage (gcp-storage-emulator), Azure (Azurite).

with s3_emulator() as store:
    DeltaTable(store.table_uri("t"), store.storage_options)

Each runs in a process of its own on a free port of the loopback interface, keeps everything in memory, starts with one
empty bucket, and ends with the block, or with the process that started it however that ends.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BUCKET = "tables"
AZURITE_DIRECTORY = ".venv/azurite"
"""Where `scripts/setup.sh` puts Azurite, below the checkout. `AZURITE` in the environment names another program."""

_ROOT = str(Path(__file__).parents[2])
_START_S = 60
# Published by the maker of Azurite, the same everywhere.
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class EmulatorMissingError(RuntimeError):
    """What an emulator needs is not installed. The text says what."""


@dataclass(frozen=True, slots=True)
class Emulator:
    """A running store.

    Attributes:
        name: `s3`, `gcs` or `azure`.
        endpoint: `http://127.0.0.1:…`.
        root: The URI of the bucket, with a trailing slash.
        storage_options: What `DeltaTable` needs to get there.
    """

    name: str
    endpoint: str
    root: str
    storage_options: Mapping[str, str]

    def table_uri(self, path: str) -> str:
        """The URI of a table."""
        return self.root + path

    def behind(self, endpoint: str) -> Emulator:
        """The same store through another address, such as a `FaultProxy`'s."""
        options = {k: v.replace(self.endpoint, endpoint) for k, v in self.storage_options.items()}
        return replace(self, endpoint=endpoint, storage_options=options)


@contextmanager
def s3_emulator() -> Iterator[Emulator]:
    """moto's server. Raises EmulatorMissingError."""
    _need("moto", "flask", "flask_cors", hint="pip install 'moto[s3]' flask flask-cors")
    with _served("s3") as endpoint:
        yield Emulator(
            "s3",
            endpoint,
            f"s3://{BUCKET}/",
            {"key": "emulator-key", "secret": "emulator-secret", "endpoint_url": endpoint, "region": "us-east-1"},
        )


@contextmanager
def gcs_emulator() -> Iterator[Emulator]:
    """gcp-storage-emulator, with the preconditions and offsets it lacks. Raises EmulatorMissingError."""
    _need("gcp_storage_emulator", hint="pip install gcp-storage-emulator")
    with _served("gcs") as endpoint:
        yield Emulator("gcs", endpoint, f"gs://{BUCKET}/", {"token": "anon", "endpoint_url": endpoint})


@contextmanager
def azure_emulator(certificate: tuple[Path, Path] | None = None) -> Iterator[Emulator]:
    """Azurite; with a certificate and its key, over TLS. Raises EmulatorMissingError."""
    program = os.environ.get("AZURITE") or str(Path(_ROOT) / AZURITE_DIRECTORY / "node_modules/.bin/azurite-blob")
    if not Path(program).exists():
        raise EmulatorMissingError(
            f"Azurite is not installed in {AZURITE_DIRECTORY}: scripts/setup.sh does it where it finds npm"
        )
    if shutil.which("node") is None:
        raise EmulatorMissingError("Azurite needs node")
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent"]
    if certificate is not None:
        command += ["--cert", str(certificate[0]), "--key", str(certificate[1])]
    with _running([*command, "--skipApiVersionCheck", "--disableTelemetry"]) as process:
        endpoint = _wait_for(process, re.compile(r"listens on (https?://127\.0\.0\.1:\d+)\s"))
        connection = (
            f"DefaultEndpointsProtocol={urlsplit(endpoint).scheme};AccountName={AZURITE_ACCOUNT};"
            f"AccountKey={AZURITE_KEY};"
            f"BlobEndpoint={endpoint}/{AZURITE_ACCOUNT};"
        )
        _create_container(connection)
        yield Emulator("azure", endpoint, f"az://{BUCKET}/", {"connection_string": connection})


EMULATORS = {"s3": s3_emulator, "gcs": gcs_emulator, "azure": azure_emulator}
"""By name, how to start each."""


def _need(*packages: str, hint: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise EmulatorMissingError(f"{', '.join(missing)} is not installed: {hint}")


@contextmanager
def _served(name: str) -> Iterator[str]:
    """One of the emulators in Python, by this module run as a program."""
    with _running([sys.executable, "-m", __spec__.name, name]) as process:
        yield _wait_for(process, re.compile(r"(http://127\.0\.0\.1:\d+)\s"))


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    # A shell holds the read end of a pipe whose other end is ours: when we are gone, however, it ends the program.
    script = '"$@" </dev/null & child=$!; trap "kill $child 2>/dev/null; wait $child" EXIT; cat >/dev/null; exit 0'
    process = subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        bufsize=0,  # a buffer has a lock, which a forked child would wait for
        cwd="/",
        # This module is found also where nobody but the working directory has put it on the path.
        env={**os.environ, "PYTHONPATH": os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])},
    )
    owner = os.getpid()
    try:
        yield process
    finally:
        # A forked child that leaves the block leaves the store to its parent.
        if os.getpid() == owner:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=_START_S)
            except subprocess.TimeoutExpired:
                # A child that was forked meanwhile holds the other end of the pipe.
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(timeout=_START_S)


def _wait_for(process: subprocess.Popen[bytes], sign: re.Pattern[str]) -> str:
    """What the program says it listens to. Its output is read to the end behind our back, so that it never blocks."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    said: list[bytes] = []
    found: list[str] = []
    ready = threading.Event()

    output = process.stdout

    def read() -> None:
        with output:
            while chunk := os.read(descriptor, 65536):
                if found:
                    continue
                said.append(chunk)
                if match := sign.search(b"".join(said).decode(errors="replace")):
                    found.append(match[1])
                    ready.set()
        ready.set()

    threading.Thread(target=read, daemon=True, name="emulator-output").start()
    ready.wait(_START_S)
    if not found:
        raise EmulatorMissingError(f"The emulator did not start: {b''.join(said)[-2000:].decode(errors='replace')}")
    return found[0]


def _create_container(connection: str) -> None:
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient.from_connection_string(connection) as client:
        client.create_container(BUCKET)


# Run as a program: `python -m tests.harness.emulators s3`


def _serve_s3() -> None:
    import logging

    from moto.s3.responses import S3Response
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    put_object, lock = S3Response.put_object, threading.Lock()

    def put_object_alone(self: Any) -> Any:
        # moto looks whether the object exists, and creates it afterwards; S3 does both at once.
        with lock:
            return put_object(self)

    S3Response.put_object = put_object_alone
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "emulator-key")
    app = DomainDispatcherApplication(create_backend_app)

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # an answer is sent in two pieces, which would wait for each other

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    _send("PUT", f"{endpoint}/{BUCKET}")
    _announce(endpoint)


def _serve_gcs() -> None:
    from gcp_storage_emulator import server as emulator
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects

    insert, listing = objects.insert, objects.ls

    def insert_if_absent(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> Any:
        # The emulator does not know ifGenerationMatch. It handles one request at a time, so looking first is enough.
        if request.query.get("ifGenerationMatch") == ["0"]:
            # What is not read of a request breaks the connection, and its answer is lost.
            name = _name_in_body(request.data) or (request.query.get("name") or [""])[0]
            try:
                storage.get_file_obj(request.params["bucket_name"], name)
            except NotFound:
                return insert(request, response, storage, *args, **kwargs)
            response.status = HTTPStatus.PRECONDITION_FAILED
            return response.json({"error": {"code": 412, "message": "At least one of the pre-conditions failed"}})
        return insert(request, response, storage, *args, **kwargs)

    def list_from_offset(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> Any:
        # Neither startOffset nor pages.
        start = (request.query.get("startOffset") or [""])[0]
        size = int((request.query.get("maxResults") or ["1000"])[0])
        after = (request.query.get("pageToken") or [""])[0]
        answer = response.json

        def json(body: dict[str, Any]) -> Any:
            items = [i for i in body.get("items") or () if i["name"] >= start and i["name"] > after]
            items.sort(key=lambda item: str(item["name"]))
            body["items"] = items[:size]
            if len(items) > size:
                body["nextPageToken"] = items[size - 1]["name"]
            return answer(body)

        response.json = json
        return listing(request, response, storage, *args, **kwargs)

    objects.insert, objects.ls = insert_if_absent, list_from_offset
    replaced = {insert: insert_if_absent, listing: list_from_offset}
    for _, methods in emulator.HANDLERS:
        for method, handler in list(methods.items()):
            methods[method] = replaced.get(handler, handler)
    emulator.RequestHandler.disable_nagle_algorithm = True
    emulator.server.HTTPServer.request_queue_size = 128
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    while server._api._httpd is None:
        server._api.is_running.wait(0.01)
    _announce(f"http://127.0.0.1:{server._api._httpd.server_port}")


def _name_in_body(data: Any) -> str:
    """Of a multipart upload, or of the beginning of one in pieces."""
    described = data.get("meta", data) if isinstance(data, dict) else {}
    return str(described.get("name") or "")


def _send(method: str, url: str) -> None:
    from urllib.request import Request, urlopen

    with urlopen(Request(url, method=method)) as answer:
        answer.read()


def _announce(endpoint: str) -> None:
    print(endpoint, flush=True)  # noqa: T201 - the program's one answer
    threading.Event().wait()


if __name__ == "__main__":
    {"s3": _serve_s3, "gcs": _serve_gcs}[sys.argv[1]]()
