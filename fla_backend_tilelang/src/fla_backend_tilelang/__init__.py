"""The fla-kernels backend whose kernels are written in TileLang.

Importing this package imports neither torch nor tilelang.
"""

from importlib.metadata import version

__version__ = version("fla-backend-tilelang")
