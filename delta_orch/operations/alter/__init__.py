"""`table.alter()`: everything about a table but its rows, changed in one commit."""
