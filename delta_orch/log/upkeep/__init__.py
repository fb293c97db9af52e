"""Upkeep of the log: version checksums, checkpoints, log compactions and cleanup. Upkeep observes commits; nothing that
reads or writes the log imports it."""
