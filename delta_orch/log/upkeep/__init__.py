"""What keeps a log small and checkable: version checksums, log compactions, cleanup, and when each is due."""
