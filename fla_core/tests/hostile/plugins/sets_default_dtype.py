"""Changes a global setting of torch when imported."""

import torch
from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__)


torch.set_default_dtype(torch.float64)
