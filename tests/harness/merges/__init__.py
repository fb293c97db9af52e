"""Random merges held against a model of MERGE in plain Python."""
