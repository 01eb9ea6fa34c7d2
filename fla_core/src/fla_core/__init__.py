"""fla-kernels: contracts, reference mathematics, dispatch and plugins for linear attention.

Importing this package imports neither torch nor any plugin; the operators are in
``fla_core.ops`` and load torch.
"""
