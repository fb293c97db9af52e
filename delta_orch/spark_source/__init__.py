"""`spark.read.format("delta_orch")`: a Python data source for classic sessions and Spark Connect.

Spark finds the format where this package is installed next to the driver (or the Connect server): it looks for
top-level packages named `pyspark_*`, and `pyspark_delta_orch` is one. In an editable install, which has no such
directory, register it with `spark.dataSource.register(DeltaOrchSource)`.

`options.py` parses the options. Spark calls `source.py`, on the driver and on executors.
"""
