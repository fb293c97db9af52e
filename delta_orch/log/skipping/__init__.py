"""Which files a predicate can concern, from partition values and statistics."""
