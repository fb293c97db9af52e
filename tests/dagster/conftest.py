from importlib.util import find_spec

# Its module imports PySpark, which an environment of Dagster alone does not have.
collect_ignore = [] if find_spec("pyspark") else ["test_dagster_spark.py"]
