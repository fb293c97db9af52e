"""Checkpoints, read and written (PROTOCOL, "Checkpoints")."""
