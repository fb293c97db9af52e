"""The tests, and what they share. Each folder has its own kind."""
