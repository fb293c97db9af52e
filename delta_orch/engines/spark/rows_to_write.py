"""The rows of a write on their way to Spark's writer, or to ours: projected, checked, brought together."""

from __future__ import annotations

from collections.abc import Sequence

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.spark.host import DataFrame, SparkHost
from delta_orch.engines.spark.projection import WriteProjection
from delta_orch.engines.spark.sql_text import escape_braces
from delta_orch.expressions.spark_literals import quote_identifier

_DEFAULT_TASKS = 200


def bounded(host: SparkHost, rows: DataFrame, spec: WriteSpec) -> tuple[DataFrame, int]:
    """The rows in no more tasks than identity values are shared out among, and how many those are: as many as the
    session uses after a shuffle. Where the rows come from fewer, this is no step at all."""
    if not spec.identities:
        return rows, 1
    setting = str(host.session.conf.get("spark.sql.shuffle.partitions"))
    tasks = int(setting) if setting.isdigit() and int(setting) else _DEFAULT_TASKS
    return rows.coalesce(tasks), tasks


def project(rows: DataFrame, projection: WriteProjection) -> DataFrame:
    """The SELECT lists of a projection, one over the other."""
    for step in projection.steps:
        rows = rows.selectExpr(*step)
    return rows


def clustered(rows: DataFrame, spec: WriteSpec, partition_columns: Sequence[str]) -> DataFrame:
    """Bring the rows of a partition together, or each task would leave a file in each of them.

    A rebalance, unlike a repartition, splits what is large and merges what is small, by the sizes that the shuffle
    has measured.
    """
    if not spec.optimize_write or (not partition_columns and spec.target_file_size_bytes is None):
        return rows
    columns = ", ".join(map(quote_identifier, partition_columns))
    hint = f"REBALANCE({columns})" if columns else "REBALANCE"
    return rows.sparkSession.sql(f"SELECT /*+ {escape_braces(hint)} */ * FROM {{rows}}", rows=rows)
