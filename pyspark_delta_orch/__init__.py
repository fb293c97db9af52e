"""Spark looks for packages named `pyspark_*` and registers what they call `DefaultSource`; see
`delta_orch.spark_source`."""

from delta_orch.spark_source.source import DeltaOrchSource as DefaultSource

__all__ = ["DefaultSource"]
