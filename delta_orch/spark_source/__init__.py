"""The format `delta_orch` of Spark, for `read`, `write`, `readStream` and `writeStream`, classic and Connect.

Spark finds the format where this package is installed next to the driver (or the Connect server): it looks for
top-level packages named `pyspark_*`, and `pyspark_delta_orch` is one. In an editable install, which has no such
directory, register it with `spark.dataSource.register(DeltaOrchSource)`.

`options.py` parses the options. Spark calls `source.py` on the driver, `on_workers.py` elsewhere.
`stream.py` plans the batches of a stream, `writer.py` plans and commits writes, `batches.py` is for `foreachBatch`.
"""
