"""The fla-kernels backend for AMD GPUs.

Importing this package imports neither torch nor triton.
"""

from importlib.metadata import version

__version__ = version("fla-backend-rocm")
