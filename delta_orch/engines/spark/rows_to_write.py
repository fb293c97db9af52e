"""The rows of a write on their way to Spark's writer, or to ours: projected, checked, brought together."""

from __future__ import annotations

from collections.abc import Sequence

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.spark.filled_columns import SelectList, is_known_before_numbers
from delta_orch.engines.spark.host import DataFrame, SparkHost
from delta_orch.engines.spark.projection import WriteProjection
from delta_orch.engines.spark.sql_text import escape_braces
from delta_orch.expressions.spark_literals import quote_identifier

_DEFAULT_TASKS = 200


def task_limit(host: SparkHost, spec: WriteSpec) -> int:
    """Among how many tasks identity values are shared out: as many as the session uses after a shuffle."""
    if not spec.identities:
        return 1
    setting = str(host.session.conf.get("spark.sql.shuffle.partitions"))
    return int(setting) if setting.isdigit() and int(setting) else _DEFAULT_TASKS


def project(rows: DataFrame, projection: WriteProjection, spec: WriteSpec, max_tasks: int) -> DataFrame:
    """The SELECT lists of a projection, one over the other; see `WriteProjection.numbered` for what comes between."""
    rows = _selected(rows, projection.filled)
    if projection.numbered:
        if is_known_before_numbers(spec):
            rows = clustered(rows, spec, spec.partition_columns)
        # No step at all where the rows come from no more tasks than that.
        rows = _selected(rows.coalesce(max_tasks), projection.numbered)
    return rows.selectExpr(*projection.written)


def _selected(rows: DataFrame, lists: Sequence[SelectList]) -> DataFrame:
    for columns in lists:
        rows = rows.selectExpr(*columns)
    return rows


def brought_together(
    rows: DataFrame, projection: WriteProjection, spec: WriteSpec, partition_columns: Sequence[str]
) -> DataFrame:
    """The projected rows, clustered now where they are not already."""
    return rows if projection.numbered else clustered(rows, spec, partition_columns)


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
