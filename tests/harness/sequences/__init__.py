"""Random sequences of statements, run by this package and by Delta on Spark on copies of one table."""
