"""``bench``: one call of one operator on several providers, checked before it is timed."""
