"""Random statements over several tables that feed each other, beside a plain Python model of rows and versions."""
