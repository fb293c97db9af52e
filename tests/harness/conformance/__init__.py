"""All cases, made and golden ones, on both engines, with a table of what was run."""
