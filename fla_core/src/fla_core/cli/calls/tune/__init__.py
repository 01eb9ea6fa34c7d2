"""``tune``: tiles are tried in processes that may die of them, checked, and timed."""
