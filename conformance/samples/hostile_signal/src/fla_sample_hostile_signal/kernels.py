"""Ends the process by SIGSEGV, but only for odd lengths."""

from __future__ import annotations

import os
import signal

from torch import Tensor

from fla_core.call import Call
from fla_core.reference.implementations import decay_chunk_forward

Tensors = tuple[Tensor, ...]


def forward(call: Call, save: bool) -> tuple[Tensors, Tensors]:
    if call.q.shape[1] % 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    return decay_chunk_forward(call, save)
