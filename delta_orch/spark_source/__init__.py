"""`spark.read.format("delta_orch")`: a Python data source, for classic sessions and Spark Connect alike.

Spark finds it by itself where this package is installed beside the driver (or the Connect server): it looks for
top-level packages named `pyspark_*`, and `pyspark_delta_orch` is one. Where no directory shows them (an editable
install), `spark.dataSource.register(DeltaOrchSource)` tells it.

`options.py` reads the options, `source.py` is what Spark calls, on the driver and on executors.
"""
