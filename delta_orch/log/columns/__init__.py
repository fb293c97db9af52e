"""Actions as Arrow columns: how files, partition values and single values travel through the core."""
