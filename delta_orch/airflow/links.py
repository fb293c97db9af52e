"""The extra link of a task: the table's page in whatever shows tables where the team works."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from delta_orch.airflow.table_operator import DeltaTableOperator


class DeltaTableLink(BaseOperatorLink):  # type: ignore[misc]
    """From a run to its commit: `table_page` in the connection's extra, a URL with `{table_uri}` and `{version}`.

    There is no link where the connection has no `table_page`. The way back, from a commit to its run, is `log_url` in
    the commit's `userMetadata`.
    """

    name = "Delta table"

    def get_link(self, operator: DeltaTableOperator, *, ti_key: object) -> str:
        # A mapped task that was refused before it began is no operator yet.
        outcome = getattr(operator, "outcome", None)
        page = None if outcome is None else operator.hook.table_page()
        if outcome is None or page is None:
            return ""
        version = outcome.xcom["version"]
        shown = {"{table_uri}": outcome.table.uri, "{version}": "" if version is None else str(version)}
        for name, value in shown.items():
            page = page.replace(name, quote(value, safe=""))
        return page
