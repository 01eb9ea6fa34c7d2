"""Writing and finding plugins: the card, the hooks, discovery and plugin states."""

from fla_core.plugins.api import PLUGIN_API, Backend, Implementation, Probe, Validity
from fla_core.plugins.hookspecs import hookimpl

__all__ = ["PLUGIN_API", "Backend", "Implementation", "Probe", "Validity", "hookimpl"]
