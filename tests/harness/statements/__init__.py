"""Random tables and statements in SQL, each text run by this package and by Delta on Spark."""
