"""Names for the errors of Spark's own actions on tables: `explained`."""

from delta_orch.engines.spark.errors import explained

__all__ = ["explained"]
