"""Many processes at work on one table while some are killed: `python -m tests.harness.torture`.

Afterwards every acknowledged commit must be there exactly once, no half of an unacknowledged one, and the rows must be
those that the log's operations give one after the other.
"""
