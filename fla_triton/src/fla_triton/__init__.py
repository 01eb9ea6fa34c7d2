"""Portable Triton kernels for linear attention.

A library for backends: it registers no plugin. Importing this package does not import Triton,
so that a backend can describe itself on a machine without one.
"""

from importlib.metadata import version

__version__ = version("fla-kernels-triton")
