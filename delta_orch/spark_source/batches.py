"""`foreachBatch`: writes the batches of a stream with a verb, each exactly once, at the speed of Spark's own writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from delta_orch.delta_table import DeltaTable
from delta_orch.engines.spark.frames import is_connect
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import TxnId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BatchVerb = Callable[[DeltaTable, "DataFrame", TxnId], object]

_QUERY_ID = "sql.streaming.queryId"


def write_batches(
    table: DeltaTable, verb: BatchVerb | None = None, *, txn_app_id: str | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch`. Each batch becomes one commit with `txn(query id, batch id)`.
    Spark may repeat a batch after a failure, but the table gets it once.

        stream.writeStream.foreachBatch(write_batches(table)).option("checkpointLocation", …).start()
        write_batches(table, lambda table, rows, txn: table.upsert(rows, ["id"], txn=txn))

    Args:
        verb: Writes the rows with the given `txn`. The default is `append`.
        txn_app_id: The application id, by default the query's id. It is required on Spark Connect. Each checkpoint
            needs a different one.

    Raises (while a batch is written): InvalidRequestError: The session does not provide the query's id, and no
    `txn_app_id` is given. Other errors: As the verb. The query stops. After a restart it continues from its checkpoint.
    """

    def write(rows: DataFrame, batch_id: int) -> None:
        txn = TxnId(txn_app_id or _query_id(rows), batch_id)
        if verb is None:
            table.append(rows, txn=txn)
        else:
            verb(table, rows, txn)

    return write


def _query_id(rows: DataFrame) -> str:
    session = rows.sparkSession
    query_id = None if is_connect(session) else session.sparkContext.getLocalProperty(_QUERY_ID)
    if not query_id:
        raise InvalidRequestError(
            "The session does not provide the id of the streaming query",
            cause="Spark Connect does not pass the id to foreachBatch",
            remedy='Pass txn_app_id="…", with a different text for each checkpoint',
        )
    return str(query_id)
