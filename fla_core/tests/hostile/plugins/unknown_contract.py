"""Implements an operator that nobody knows."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, contract="quantum_attn")
