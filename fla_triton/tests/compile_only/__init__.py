"""Compiling every kernel for chips that are not there, in a process of its own for each."""
