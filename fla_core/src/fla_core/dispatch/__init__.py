"""Choosing an implementation: policy, resolution, plans, and the reasons behind them."""

from fla_core.dispatch.context import policy_text, use
from fla_core.dispatch.decision import Decision
from fla_core.dispatch.plan import Plan, find_plan
from fla_core.dispatch.runtime import on_reset, reload_env

__all__ = ["Decision", "Plan", "find_plan", "on_reset", "policy_text", "reload_env", "use"]
