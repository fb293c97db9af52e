"""Predicates that mean something else in each time zone. They are evaluated in UTC, on both engines; a Connect session
can only evaluate them in its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from delta_orch.engines.spark.host import SparkHost
from delta_orch.errors import UnsupportedExpressionError
from delta_orch.expressions.nodes import Coerced, Expression, Opaque
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import children_of, columns_of
from delta_orch.protocol.types import TIMESTAMP, StructType

_ZONE = "spark.sql.session.timeZone"
_UTC = {"utc", "etc/utc", "gmt", "z", "+00:00", "+0", "utc+0", "gmt+0", "zulu", "etc/gmt", "universal", "etc/universal"}
_MAKES_INSTANTS = re.compile("timestamp|unixtime|_unix", re.IGNORECASE)


def ensure_zone_does_not_matter(host: SparkHost, where: Expression, schema: StructType) -> None:
    """Refuse what the session would evaluate in another zone than UTC. Only text that delta_orch does not take apart is
    in question: constants of other predicates say their zone.

    Raises:
        UnsupportedExpressionError: The session's zone is not UTC, and the text looks at instants.
    """
    if host.is_time_zone_pinned:
        return
    texts = [text for node in _opaque_parts(where) if _looks_at_instants(node, text := to_spark_sql(node), schema)]
    if texts and (zone := host.session.conf.get(_ZONE)).lower() not in _UTC:
        raise UnsupportedExpressionError(
            f"The session's time zone {zone} would change what {texts[0]!r} means",
            cause="Predicates of a scan are evaluated in UTC, and this Spark session has one time zone for everything",
            remedy=f'Set {_ZONE} to "UTC" while the rows are read, or filter the DataFrame instead of the scan',
            expression=texts[0],
        )


def _opaque_parts(expression: Expression) -> Iterator[Expression]:
    if isinstance(expression, Opaque | Coerced):
        yield expression
        return
    for child in children_of(expression):
        yield from _opaque_parts(child)


def _looks_at_instants(node: Expression, text: str, schema: StructType) -> bool:
    types = (find_column(column.path, schema)[1] for column in columns_of(node))
    return _MAKES_INSTANTS.search(text) is not None or TIMESTAMP in types
