"""All golden cases on both engines, with a table of what was run: `python -m tests.harness.conformance`."""
