"""Commits: read, staged, held against those of others, and made."""
