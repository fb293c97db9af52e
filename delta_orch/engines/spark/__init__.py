"""The engine on Spark: classic sessions and Spark Connect, without a jar.

`engine.py` is the front; behind it a `host.SparkHost` knows what the session can do: `classic.py` reaches into the JVM
through classes compiled there at run time (`bridge.py`, `java/`), `portable.py` uses public DataFrame calls only.
"""
