"""Replaces a function of torch when imported."""

import torch
from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__)


def matmul(a, b):
    return torch.zeros(a.shape[:-1] + b.shape[-1:])


torch.matmul = matmul
