"""The engine on Spark: classic sessions and Spark Connect, without a jar.

Imports go one way, from the bottom: `sql_text`, `frames`, `errors` → `pushed_filters`, `scan_files` →
`host` (what a session can do) → `classic` (through Java compiled in the driver, `java/`) and `portable` (public
DataFrame calls only) → `scan`, `write` → `engine`, which chooses the host of a session.
"""
