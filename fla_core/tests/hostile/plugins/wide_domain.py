"""Claims a dtype that the contract does not have."""

from dataclasses import replace

from hostile_base import DOMAIN, hooks

fla_backend, fla_implementations = hooks(
    __name__, domain=replace(DOMAIN, dtypes=("float32", "int8"))
)
