"""A secret placed anywhere in the input appears nowhere: not in errors, what they carry, logs, or the table."""

from __future__ import annotations

import io
import logging
import pickle
import re
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import delta_orch
from delta_orch import DeltaTable, TxnId, column, redaction
from delta_orch.cli.main import run
from delta_orch.errors import DeltaError, InvalidRequestError, StorageError
from delta_orch.redaction import hide, kept, redacted
from tests.bounded import tries
from tests.families import family

SECRETS = st.text("abcXYZ019+=_-", min_size=10, max_size=30).map(lambda text: f"Q7{text}")
LOCATIONS = [
    "s3://AKIA:{}@bucket/t", "s3:/AKIA:{}@bucket/t", "s3://{}:pw@bucket/t", "https://host.invalid/t?sig={}",
    "https://u:{}@host.invalid/t", "http:/u:{}@host.invalid/t", "file://u:{}@host/t", "simplecache::s3://AKIA:{}@b/t",
    "filecache::https://h.invalid/x?token={}", "abfss://c:{}@a.dfs.core.windows.net/t", "az://c/t?sv=1&sig={}",
    "gs://b/t#{}", "hdfs://u:{}@h/t", "sftp://u:{}@h/t", "nosuch://u:{}@h/t", "ftp://u:{}@h.invalid/t?x={}",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _at_once() -> Iterator[None]:
    delta_orch.configure(retry_seconds=0)
    yield
    delta_orch.configure(retry_seconds=None)


def everything(error: BaseException | None) -> str:
    """All that can be seen of an error."""
    seen = ""
    while error is not None:
        seen += f"{error} {error!r} {error.args!r} {getattr(error, 'context', '')!r}"
        seen += "".join(traceback.format_exception_only(error))
        error = error.__cause__ or error.__context__
    return seen


def watched(work: Callable[[], Any]) -> str:
    """What work shows: errors, logs."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    shown = ""
    try:
        shown += repr(work())
    except DeltaError as e:
        shown += everything(e) + everything(pickle.loads(pickle.dumps(e)))
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    return shown + stream.getvalue()


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(secret=SECRETS, template=st.sampled_from(LOCATIONS))
def test_locations(tmp_path: Path, secret: str, template: str) -> None:
    uri = template.replace("{}", secret)
    table = DeltaTable(tmp_path / "t")
    for work in (
        lambda: (DeltaTable(uri), DeltaTable(uri).uri, DeltaTable(uri).store),
        lambda: DeltaTable(tmp_path / "t", external_paths=[]).store.resolve(uri),
        lambda: table.store.resolve(uri),
    ):
        shown = watched(work)
        assert secret not in shown
        assert quote(secret, safe="") not in shown


@pytest.mark.parametrize(
    "uri",
    [
        "memory://u:{}@x", "s3://b/t;password={}", "SharedAccessSignature=sv=1&sig={}", "t?sig={}", "az://c/t&sig={}/x",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=core.windows.net",
    ],
)  # fmt: skip
def test_what_holds_a_secret_is_no_location(uri: str) -> None:
    secret = "Q7wJalrXUtnFEMIK7MDENG"
    with pytest.raises(InvalidRequestError, match=r"holds credentials|is one|has a query") as caught:
        DeltaTable(uri.replace("{}", secret))
    assert secret not in everything(caught.value)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(secret=SECRETS, name=st.sampled_from(["secret", "key", "sas_token", "password", "nonsense"]))
def test_options(secret: str, name: str) -> None:
    for uri in ("s3://bucket.invalid/t", "az://c/t", "gs://b/t", "sftp://h.invalid/t"):
        assert secret not in watched(lambda u=uri: DeltaTable(u, {name: secret}))  # type: ignore[misc]


@pytest.mark.parametrize(
    "arguments",
    [
        ["snapshot", "s3://AKIA:{}@bucket/t"],
        ["snapshot", "https://h.invalid/t?sig={}", "--nonsense"],
        ["snapshot", "memory://x", "-o", "secret={}", "--nonsense"],
        ["snapshot", "memory://x", "--storage-option=password={}", "more"],
        ["snapshot", "memory://x", "-o", "{}"],
        ["snapshot", "memory://x", "-o", "a=1", "s3://u:{}@b"],
        ["snapshot", "memory://x", "--password={}"],
        ["snapshot", "AccountName=a;AccountKey={}"],
        ["https://h.invalid/t?sig={}"],
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_command_line(capfd: pytest.CaptureFixture[str], arguments: list[str], form: list[str]) -> None:
    secret = "Q7wJalrXUtnFEMIK7MDENG"
    with pytest.raises(SystemExit):
        run([*(a.replace("{}", secret) for a in arguments), *form])
    assert secret not in "".join(capfd.readouterr())


def test_a_secret_is_hidden_as_a_url_spells_it() -> None:
    secret = "/Q7 wJalr/XUtn+FEMI="
    hide(secret)
    for spelled in (secret, quote(secret), quote(secret, safe=""), quote_plus(secret)):
        assert spelled not in redacted(f"Max retries exceeded with url: /tokeninfo/{spelled}")


def test_what_a_library_says_is_dropped_with_its_context() -> None:
    from delta_orch.storage.fsspec_store import FsspecStore

    class Talkative:
        def cat_file(self, path: str) -> bytes:
            raise OSError(5, "GET https://h/x?sig=Q7wJalrXUtnFEMI failed", "https://h/x?sig=Q7wJalrXUtnFEMI")

    import os

    store = FsspecStore("memory://x")
    store._made = (os.getpid(), Talkative())
    with pytest.raises(StorageError) as caught:
        store.read_bytes("a")
    assert "Q7wJalrXUtnFEMI" not in everything(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "The data file key=1/token=x/part-0.parquet is not there", "The file 'token=x/part-0.parquet'",
        "s3://bucket/a=b/c", "abfss://c@a.dfs.x/t",
        "compass: north, pass_rate: 3",
        "http://127.0.0.1:9000/bucket/a@b", "Column a: b@c", "file:///data/a b/x.parquet", "10:30@noon", "id = 'a@b'",
    ],
)  # fmt: skip
def test_what_is_not_secret_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("name", ["password", "api_key", "Client-Secret", "my.token"])
def test_an_argument_that_sets_a_secret_is_not_repeated(tmp_path: Path, name: str) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1]}))
    wrong = f"{name}=Q7wJalrXUtnFEMI"
    calls: list[Callable[[], object]] = [
        lambda: table.alter().add_column("x", wrong).commit(),
        lambda: table.alter().set_properties({"delta.appendOnly": wrong}).commit(),
        lambda: table.append(pa.table({"id": [2]}), engine=wrong),
        lambda: table.snapshot(timestamp=wrong),
    ]
    for call in calls:
        with pytest.raises(DeltaError) as caught:
            call()
        assert "Q7wJalrXUtnFEMI" not in everything(caught.value)


SECRET_PROPERTIES = {
    "fs.azure.account.key.mine.dfs.core.windows.net": "Q7wJalrXUtnFEMI",
    "fs.s3a.secret.key": "Q7wJalrXUtnFEMI",
    "spark.hadoop.fs.s3a.session.token": "Q7wJalrXUtnFEMI",
    "source": "postgres://me:Q7wJalrXUtnFEMI@db/x",
    "signed": "https://a.blob.core.windows.net/c?sig=Q7wJalrXUtnFEMI",
    "settings": "user=me;password=Q7wJalrXUtnFEMI",
}


@pytest.mark.parametrize("name", SECRET_PROPERTIES)
def test_a_property_of_a_table_is_no_credential(tmp_path: Path, name: str) -> None:
    told = {name: SECRET_PROPERTIES[name]}
    table = DeltaTable(tmp_path / "t")
    fine = {"docs": "https://wiki/page?id=5", "tokenizer": "bpe", "fs.format": "key", "owner": "me@mine.org"}
    table.append(pa.table({"id": [1]}), properties=fine)
    calls: list[Callable[[], object]] = [
        lambda: table.alter().set_properties(told).commit(),
        lambda: table.create_or_replace(pa.schema([("id", pa.int64())]), properties=told),
        lambda: DeltaTable(tmp_path / "u").append(pa.table({"id": [1]}), properties=told),
        lambda: table.clone(tmp_path / "v", properties=told),
    ]
    for call in calls:
        with pytest.raises(DeltaError, match="credential") as caught:
            call()
        assert "Q7wJalrXUtnFEMI" not in everything(caught.value)
    assert table.version() == 0 and not (tmp_path / "u").exists() and not (tmp_path / "v").exists()
    assert fine.items() <= table.snapshot().metadata.configuration.items()


CREDENTIALS = [
    "https://h/x?a=1&sig={}", "s3://AK:{}@bucket/x", "abfss://c@a/x?sv=1&sig={}", "AccountKey={};b=2",
    "jdbc:x://u:{}@h/d", "password={}", "PGPASSWORD={} psql", "--password {}", "aws_secret_access_key = {}",
    'the {{"password": "{}"}}', "Authorization: Bearer {}", "authorization=Basic {}", "x-api-key: {}",
    "DB_PASS={}", "passphrase: {}", '{{"pass": "{}"}}', "sig={}", "https://{}@github.com/x", "x ghp_{} y",
    "jdbc:oracle:thin:me/{}@h:1521/x", "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{}",
    "api_key: {}", "client_secret%3D{}", "https://h/x?access%5Ftoken={}", "passwd:`{}`",
]  # fmt: skip
"""The forms that commits, metadata, identifiers and domains keep out."""


@pytest.mark.parametrize("text", CREDENTIALS)
def test_no_text_that_a_table_keeps_holds_a_credential(tmp_path: Path, text: str) -> None:
    given = text.format("Q7wJalrXUtnFEMI0")
    table = DeltaTable(tmp_path / "t")
    schema = [column("id", "bigint", comment="Password: at least 8 letters, see https://wiki/page?id=5")]
    table.create(schema, description="token: opaque", properties={"delta.feature.domainMetadata": "supported"})
    literal = "'" + given.replace("\n", "\\n") + "'"
    named = pa.table({given: [1]})
    calls: list[Callable[[], object]] = [
        lambda: DeltaTable(tmp_path / "u").create(schema, description=given),
        lambda: DeltaTable(tmp_path / "u").create(schema, name=given),
        lambda: DeltaTable(tmp_path / "u").create([column("id", "bigint", comment=given)]),
        lambda: DeltaTable(tmp_path / "u").append(ONE, properties={"note": given}),
        lambda: table.create_or_replace([column("id", "bigint", comment=given)]),
        lambda: table.create_or_replace(schema, properties={"note": given}),
        lambda: table.alter().set_description(given).commit(),
        lambda: table.alter().set_name(given).commit(),
        lambda: table.alter().set_column_comment("id", given).commit(),
        lambda: table.alter().add_column("b", "int", comment=given).commit(),
        lambda: table.alter().set_properties({"note": given}).commit(),
        lambda: table.alter().set_default("id", f"length({literal})").commit(),
        lambda: table.alter().add_constraint("c", f"length({literal}) > id").commit(),
        lambda: table.set_domain_metadata("mine", given),
        lambda: table.set_domain_metadata(given, "{}"),
        lambda: table.append(ONE, txn=TxnId(given, 1)),
    ]
    for call in calls:
        with pytest.raises(DeltaError, match="credential") as caught:
            call()
        assert "Q7wJalrXUtnFEMI0" not in everything(caught.value)
    # Of these most are no names of columns anyway.
    for call in (
        lambda: DeltaTable(tmp_path / "u").append(named),
        lambda: DeltaTable(tmp_path / "u").append(named, properties={"delta.columnMapping.mode": "name"}),
        lambda: table.overwrite(named, schema_mode="overwrite"),
        lambda: table.alter().add_column([given], "int").commit(),
    ):
        with pytest.raises(DeltaError):
            call()
    assert table.version() == 0 and not (tmp_path / "u").exists()


ORDINARY = [
    "Password: at least 8 letters, see https://wiki/page?id=5", "token: opaque", "token_type = 'bearer'",
    "token_type='bearer'", "token <> ''", "token IN ('card', 'bank')", "length(password) >= 8", "password IS NOT NULL",
    "api_key LIKE 'sk-%'", "api_key RLIKE '^[a-z0-9]{32}$'", "password_hash = sha2(password, 256)",
    "tokens:run-abc123", "dagster:asset:access_tokens:2024-01-01", "asset=tokens:partition=2024-01-01", "job/tokens=5",
    "password=${DB_PASSWORD}", "token={{ token }}", "password=<hidden>", "token: string", "secret = t2.secret",
    "concat('token=', id)", "token = 5", "password_changed: 2024-01-01T00:00:00Z", "Tokenizer: bpe",
    "max_tokens=100000",
    "access_token = NULL", "password: required, 8-64 characters", "sig: sha256", "token: uuid4 of the session",
]  # fmt: skip


@pytest.mark.parametrize("text", ORDINARY)
def test_a_text_that_only_names_secrets_is_kept(tmp_path: Path, text: str) -> None:
    table = DeltaTable(tmp_path / "t")
    features = {"delta.feature.domainMetadata": "supported", "note": text}
    table.create([column("id", "bigint", comment=text)], name=text, description=text, properties=features)
    table.set_domain_metadata("mine", text)
    table.append(ONE, txn=TxnId(text, 1))
    state = table.snapshot()
    assert (state.metadata.name, state.metadata.configuration["note"], state.txns[text]) == (text, text, 1)


def test_what_another_writer_left_does_not_keep_a_table_from_changing(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(ONE, description="HERE", user_metadata="HERE")
    commit = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    commit.write_text(commit.read_text().replace("HERE", "password=Q7wJalrXUtnFEMI0"))
    table = DeltaTable(tmp_path / "t")
    for statement in ("DESCRIBE DETAIL", "DESCRIBE HISTORY", "SHOW TBLPROPERTIES"):
        shown = delta_orch.sql(f"{statement} delta.`{table.uri}`")
        assert isinstance(shown, pa.Table) and "Q7wJalrXUtnFEMI0" not in str(shown.to_pylist()), statement
    table.alter().add_column("b", "int").commit()
    table.restore(0)
    table.clone(tmp_path / "c")
    with pytest.raises(DeltaError, match="credential"):
        table.alter().add_column("c", "int", comment="password=Q7wJalrXUtnFEMI0x").commit()


def test_errors_and_plans_hold_no_secret_of_a_predicate_or_a_row(tmp_path: Path) -> None:
    secret = "Q7wJalrXUtnFEMI"
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1], "password": ["x"], "url": ["y"]}))
    table.alter().add_constraint("short", "length(url) < 9").commit()
    told = [f"password = '{secret}'", f"password IN ('a', '{secret}')", f"url = 'https://me:{secret}@db/x'"]
    rows = pa.table({"id": [2], "password": [secret], "url": [f"https://me:{secret}@db/x"]})
    calls: list[Callable[[str], object]] = [
        lambda where: table.delete(f"{where} AND ("),
        lambda where: table.delete(f"({where}) + 1 = 2"),
        lambda where: table.delete(f"{where} AND nothing = 1"),
        lambda where: table.append(rows),
        lambda where: table.overwrite(rows, replace_where=f"{where} AND id = 9"),
    ]
    for where in told:
        assert secret not in f"{table.snapshot().scan(where=where).explain()!r}"
        for call in calls:
            with pytest.raises(DeltaError) as caught:
                call(where)
            assert secret not in everything(caught.value) + repr(caught.value.context)


def test_commits_hold_no_secret(tmp_path: Path) -> None:
    table = DeltaTable(f"file://{tmp_path}/t")
    table.append(pa.table({"id": [1]}))
    assert "sig=" not in table.store.read_bytes("_delta_log/00000000000000000000.json").decode()


SECRET = "SuperSecretKey1234567890"
ONE = pa.table({"id": [1]})


@pytest.mark.parametrize("text", CREDENTIALS)
def test_a_commit_keeps_no_secret_of_its_caller(tmp_path: Path, text: str) -> None:
    given = text.format(SECRET)
    table = DeltaTable(tmp_path / "t")
    table.append(ONE, user_metadata=f"loaded from {given}", commit_info={"source": given, "more": [{"deep": given}]})
    table.append(ONE, commit_info={"password": SECRET, given: "x", "deep": {"api_key": SECRET}})
    table.append(ONE, operation_metrics={"source": given, "password": SECRET, given: "1"})
    if "`" not in given:
        table.delete(f"""'{given}' = 'x'""")
    table.alter().set_properties({"owner": "me"}).commit(user_metadata=given)
    for file in (tmp_path / "t" / "_delta_log").iterdir():
        assert SECRET not in file.read_text(errors="replace"), file.name
    table.append(ONE, user_metadata="https://dagster/runs?id=5#logs a@b.c")
    assert next(iter(table.history())).user_metadata == "https://dagster/runs?id=5#logs a@b.c"


PATTERNS = ("_USER", "_QUERY", "_NAMED", "_TOKEN", "_LOGIN", "_TOLD", "_SET", "_QUOTED", "_COMPARED", "_NAME_OF_SECRET")


@pytest.mark.long
@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_text_without_its_words_matches_no_pattern(name: str, data: st.DataObject) -> None:
    """Such a text is not looked at any further: see `_SIGNS`."""
    pattern = getattr(redaction, name)
    text = data.draw(st.from_regex(pattern), label="text")
    # What a pattern looks behind or ahead for may be missing in what is drawn.
    assert re.search(pattern, text) is None or redaction._may_hold(text)


@pytest.mark.long
def test_redaction_takes_no_longer_for_hostile_text() -> None:
    for text in (
        "token",
        "'token",
        "'token=",
        "--token ",
        "x-",
        "x-token",
        "bearer ",
        "authorization",
        "?token",
        "%3Dtoken",
        " a.token",
        "https://",
        "https://@",
        "s3://a:",
        "-eyJhbGciOiJ",
        "-----BEGIN ",
        "jdbc:oracle:thin:a/",
        "token='",
        "token IN ('a', ",
    ):
        for one in tries(5, text):
            with one.timed():
                kept(redacted(text * 20_000 + "="))


@family("place", ["border", "nowhere", "start", "end"], every=4)
def test_a_long_text_is_redacted_in_seconds(place: str) -> None:
    """Of a text of 40 MB only what stands around a sign of a secret is searched by patterns."""
    secret = "?password=Q7abcdefgh0123"
    size = 40_000_000
    at = {"nowhere": None, "start": 0, "border": redaction._PIECE_CHARS - 5, "end": size}[place]
    text = "lorem ipsum " * (size // 12)
    if at is not None:
        text = text[:at] + f" https://host/{secret} " + text[at:]
    for one in tries(4, place):
        with one.timed():
            shown = redacted(text)
    assert "Q7abcdefgh" not in shown and len(shown) >= len(text) - len(secret)
    assert (shown == text) == (at is None)


def test_signs_in_other_letters_are_signs() -> None:
    for sign in redaction._SIGNS:
        for text in (sign, sign.upper(), sign.replace("k", "\u212a").replace("s", "\u017f").replace("i", "\u0131")):
            assert redaction._may_hold(f"…{text}…"), text
    assert redaction._may_hold("S\u0130G=x") and not redaction._may_hold("lorem … ipsum")


def test_what_the_environment_says_is_in_no_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    # A secret that no other test gave: what a caller once gave is hidden anyway.
    secret = uuid.uuid4().hex
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": secret,
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_REGION": "us-east-1",
        # A retry is in the log, too; more of them only take time.
        "AWS_MAX_ATTEMPTS": "2",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(DeltaError):
        DeltaTable("s3://bucket/t").append(ONE)
    assert "x-amz-security-token" in caplog.text.lower()
    assert secret not in caplog.text


@pytest.mark.parametrize(("uri", "options"), [("gs://b/t", {"token": "{}"}), ("az://c/t", {"timeout": "{}"})])
def test_an_option_that_does_not_fit_is_not_repeated(uri: str, options: dict[str, str]) -> None:
    given = {name: value.format(SECRET) for name, value in options.items()}
    shown = watched(lambda: DeltaTable(uri, given).append(ONE))
    assert SECRET not in shown


def test_a_log_call_with_wrong_arguments_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    DeltaTable("s3://bucket/t", {"key": "k", "secret": "Q7wJalrXUtnFEMI0", "endpoint_url": "http://127.0.0.1:1"})
    with caplog.at_level(logging.DEBUG, "botocore"):
        few: tuple[object, ...] = ("Q7wJalrXUtnFEMI0",)
        logging.getLogger("botocore.somewhere").debug("%d of %d", *few)
        # `logging` makes a record without a name first.
        record = logging.makeLogRecord({"name": "botocore", "msg": "x"})
    assert record.getMessage() == "x"
    assert caplog.messages == ["A message of botocore.somewhere cannot be written: TypeError"]


def test_a_signed_address_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    delta_orch.configure(retry_seconds=0)
    for uri in (f"http://127.0.0.1:9/x?sig={SECRET}", f"http://u:{SECRET}@127.0.0.1:9/x"):
        for act in (lambda uri=uri: DeltaTable(uri).version(), lambda uri=uri: DeltaTable(uri).append(ONE)):
            with pytest.raises(DeltaError) as caught:
                act()
            assert SECRET not in "".join(traceback.format_exception(caught.value))
    delta_orch.configure(retry_seconds=None)
    assert SECRET not in caplog.text


_READS = [
    "snapshot", "files", "history", "txns", "fsck --check", "explain",
    "vacuum --dry-run --retention-hours 0 --force", "restore --dry-run --version 0",
    "sql DESCRIBE DETAIL", "sql DESCRIBE HISTORY", "sql SHOW TBLPROPERTIES",
]  # fmt: skip


@pytest.mark.parametrize("command", _READS)
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_the_command_line_does_not_repeat_what_a_stranger_left_in_a_table(
    tmp_path: Path, command: str, as_json: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    left = f"s3://AKIA:{SECRET}@b/x.parquet https://h.invalid/x?sig={SECRET}"
    root = tmp_path / "t"
    table = DeltaTable(root)
    table.append(ONE, properties={"delta.feature.domainMetadata": "supported"})
    table.append(ONE)
    table.wait_for_upkeep()
    for checksum in (root / "_delta_log").glob("*.crc"):
        checksum.unlink()
    first, second = sorted((root / "_delta_log").glob("*.json"))
    lines = [orjson.loads(line) for line in first.read_bytes().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"] |= {"name": left, "description": left, "configuration": {"a": left}}
            line["metaData"]["schemaString"] = line["metaData"]["schemaString"].replace(
                '"metadata":{}', f'"metadata":{{"comment":"{left}"}}'
            )
        if "commitInfo" in line:
            parameters = {
                left: left,
                "password": SECRET,
                "source": f"user=me password={SECRET}",
                "options": {"pwd": SECRET},
            }
            about = f"password={SECRET}"
            told = {"operation": left, "operationParameters": parameters, "userMetadata": about, "engineInfo": left}
            line["commitInfo"] |= told
    lines += [{"txn": {"appId": left, "version": 1}}]
    lines += [{"domainMetadata": {"domain": left, "configuration": left, "removed": False}}]
    first.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    paths = [f"s3://AKIA:{SECRET}@b/x.parquet", f"https://h.invalid/x?sig={SECRET}"]
    adds = [
        {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True} for path in paths
    ]
    second.write_bytes(second.read_bytes() + b"\n" + b"\n".join(orjson.dumps({"add": add}) for add in adds))
    name, *rest = command.split(" ")
    given = [name, f"{' '.join(rest)} delta.`{root}`"] if name == "sql" else [name, str(root), *rest]
    with pytest.raises(SystemExit):
        run([*given, *as_json])
    shown = capsys.readouterr()
    assert shown.out
    assert SECRET not in shown.out + shown.err


def test_the_command_line_shows_rows_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = "https://h.invalid/x?sig=0123456789"
    DeltaTable(tmp_path / "t").append(pa.table({"url": [value]}))
    for command in (["show", str(tmp_path / "t")], ["sql", f"SELECT url FROM delta.`{tmp_path / 't'}`"]):
        for as_json in ([], ["--json"]):
            with pytest.raises(SystemExit):
                run([*command, *as_json])
            assert value in capsys.readouterr().out
