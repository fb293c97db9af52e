"""Connections of the Spark provider's types, read as it reads them."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Connection

from delta_orch.airflow import DeltaWriteOperator
from delta_orch.airflow.spark_session import connection_conf
from delta_orch.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("given", "conf"),
    [
        ({"conn_type": "spark", "host": "local[2]"}, {"spark.master": "local[2]"}),
        ({"conn_type": "spark", "host": "yarn"}, {"spark.master": "yarn"}),
        ({"conn_type": "spark", "host": "spark://h", "port": 7077}, {"spark.master": "spark://h:7077"}),
        ({"conn_type": "spark", "host": "h", "port": 7077}, {"spark.master": "spark://h:7077"}),
        ({"conn_type": "k8s", "host": "https://h", "port": 443}, {"spark.master": "k8s://https://h:443"}),
        (
            {"conn_type": "spark", "host": "yarn", "extra": {"queue": "q", "spark.a": 1, "deploy-mode": "client"}},
            {"spark.master": "yarn", "spark.yarn.queue": "q", "spark.a": "1"},
        ),
        ({"conn_type": "spark_connect", "host": "h"}, {"spark.remote": "sc://h/"}),
        (
            {"conn_type": "spark_connect", "host": "sc://h", "port": 15002, "login": "me", "password": "a;b=c",
             "extra": {"use_ssl": True}},
            {"spark.remote": "sc://h:15002/;user_id=me;token=a%3Bb%3Dc;use_ssl=true"},
        ),
    ],
)  # fmt: skip
def test_settings_of_connections(given: dict[str, Any], conf: dict[str, str]) -> None:
    assert connection_conf(Connection(conn_id="c", **_with_text(given))) == conf


@pytest.mark.parametrize(
    "given",
    [
        {"conn_type": "spark"},
        {"conn_type": "postgres", "host": "h"},
        {"conn_type": "spark_connect"},
        {"conn_type": "spark_connect", "host": "sc://h/path"},
        {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}},
    ],
)
def test_others_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        connection_conf(Connection(conn_id="c", **_with_text(given)))


@pytest.mark.parametrize(
    "arguments",
    [{"engine": "local"}, {"spark_conf": {"spark.master": "local"}}, {"spark_conf": {"spark.remote": "sc://h"}}],
)
def test_contradictions_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="spark_con"):
        DeltaWriteOperator(task_id="t", table_uri="/t", sql="SELECT 1 AS i", spark_conn_id="c", **arguments)


def _with_text(given: dict[str, Any]) -> dict[str, Any]:
    import json

    return {**given, "extra": json.dumps(given["extra"])} if "extra" in given else given
