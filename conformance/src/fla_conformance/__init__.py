"""The conformance suite: proves a backend against the core's reference mathematics."""

from importlib.metadata import version

__version__ = version("fla-conformance")
