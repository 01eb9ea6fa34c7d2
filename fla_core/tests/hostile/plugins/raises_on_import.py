"""Misses a library."""

raise ImportError("libmissing.so.12: cannot open shared object file")
