"""A small language model whose token mixer is one linear-attention operator.

Each mixer calls its operator in two forms. The *chunk* form takes many tokens at once: training,
and the prefill of a prompt. The *recurrent* form takes one token after another from a carried
state: generation. Both compute the same function, so a state of one continues the other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fla_core.ops import (
    chunk_gated_delta_rule,
    chunk_gla,
    chunk_kda,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_gla,
    fused_recurrent_kda,
)


class MixerState(NamedTuple):
    """What a mixer remembers of a sequence; its size does not depend on the sequence's length."""

    recent: Tensor  # [B, 3, C], the last inputs of the short convolution
    memory: Tensor  # [B, HV, K, V], the operator's final state


class ShortConv(nn.Module):
    """Causal convolution along time, one filter a channel, then SiLU."""

    def __init__(self, channels: int, taps: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(taps, channels).uniform_(-1, 1) / math.sqrt(taps))

    def forward(self, x: Tensor, recent: Tensor | None) -> tuple[Tensor, Tensor]:
        """Convolve ``x [B, T, C]``; return it with the inputs that the next call needs."""
        taps, length = len(self.weight), x.shape[1]
        if recent is None:
            recent = x.new_zeros(x.shape[0], taps - 1, x.shape[2])
        x = torch.cat([recent, x], dim=1)
        # Four shifted products: faster on a CPU than a grouped conv1d, and without transposes.
        y = sum(x[:, i : i + length] * tap for i, tap in enumerate(self.weight))
        return F.silu(y), x[:, length:]


class Mixer(nn.Module):
    """Queries, keys and values from a short convolution; the operator; a gated norm.

    Args:
        width: of the residual stream.
        heads: HV, value heads.
        key_heads: H, heads of q and k, a divisor of ``heads``.
        key_dim: K. Values have ``width // heads`` channels (V).
    """

    operators: tuple[str, str]
    """Names of the chunk and the recurrent form."""
    features: tuple[str, ...]
    """Features of the operator's contract that `attend` uses."""

    def __init__(self, width: int, heads: int, key_heads: int, key_dim: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.key_dim = heads, key_heads, key_dim
        self.sizes = [key_heads * key_dim, key_heads * key_dim, width]
        self.qkv = nn.Linear(width, sum(self.sizes), bias=False)
        self.conv = ShortConv(sum(self.sizes))
        self.norm = nn.RMSNorm(width // heads, eps=1e-6)
        self.gate = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(
        self, x: Tensor, state: MixerState | None, recurrent: bool
    ) -> tuple[Tensor, MixerState]:
        recent, memory = (None, None) if state is None else state
        qkv, recent = self.conv(self.qkv(x), recent)
        q, k, v = qkv.split(self.sizes, dim=-1)
        q, k = (y.unflatten(-1, (self.key_heads, self.key_dim)) for y in (q, k))
        v = v.unflatten(-1, (self.heads, -1))
        o, memory = self.attend(x, q, k, v, memory, recurrent)
        o = self.norm(o).flatten(-2) * F.silu(self.gate(x))
        return self.out(o), MixerState(recent, memory)

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of the operator's axes that do not depend on the text."""
        axes = {"H": self.key_heads, "K": self.key_dim, "V": self.sizes[2] // self.heads}
        return axes if self.heads == self.key_heads else {**axes, "HV": self.heads}

    def attend(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None, recurrent: bool
    ) -> tuple[Tensor, Tensor]:
        """Run the operator; return ``o [B, T, HV, V]`` and the final state."""
        raise NotImplementedError


DELTA_FEATURES = ("gate", "A_log", "dt_bias", "beta_sigmoid", "l2norm", "final_state")


class GatedDeltaNet(Mixer):
    """GDN: one decay a head; two value heads share a key head."""

    operators = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")
    features = ("g", "beta", *DELTA_FEATURES)

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, key_heads=heads // 2, key_dim=width // heads)
        self.g = nn.Linear(width, heads, bias=False)
        self.beta = nn.Linear(width, heads, bias=False)
        # The gate -exp(A_log) softplus(g + dt_bias) starts between -1 and -1/64, head by head.
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.logspace(0, -6, heads, base=2).expm1().log())

    def attend(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None, recurrent: bool
    ) -> tuple[Tensor, Tensor]:
        gdn = fused_recurrent_gated_delta_rule if recurrent else chunk_gated_delta_rule
        return gdn(
            q,
            k,
            v,
            g=self.g(x),
            beta=self.beta(x),
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            use_qk_l2norm_in_kernel=True,
            initial_state=memory,
            output_final_state=True,
        )


class KimiDeltaAttention(Mixer):
    """KDA: one decay a key channel, bounded from below."""

    operators = ("chunk_kda", "fused_recurrent_kda")
    features = ("lower_bound", *DELTA_FEATURES)

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, key_heads=heads, key_dim=width // heads)
        self.g = nn.Sequential(
            nn.Linear(width, width // heads, bias=False),
            nn.Linear(width // heads, width, bias=False),
        )
        self.beta = nn.Linear(width, heads, bias=False)
        # The gate -5 sigmoid(exp(A_log) (g + dt_bias)) starts between -1.3 and -0.01 in each head.
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.linspace(-1, -6, self.key_dim).repeat(heads))

    def attend(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None, recurrent: bool
    ) -> tuple[Tensor, Tensor]:
        kda = fused_recurrent_kda if recurrent else chunk_kda
        return kda(
            q,
            k,
            v,
            g=self.g(x).unflatten(-1, (self.heads, self.key_dim)),
            beta=self.beta(x),
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            lower_bound=-5.0,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            use_qk_l2norm_in_kernel=True,
            initial_state=memory,
            output_final_state=True,
        )


class GatedLinearAttention(Mixer):
    """GLA: one decay a key channel, and no delta rule; keys are half as wide as values."""

    operators = ("chunk_gla", "fused_recurrent_gla")
    features = ("gk", "final_state")

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, key_heads=heads, key_dim=width // heads // 2)
        self.g = nn.Linear(width, heads * self.key_dim)

    def attend(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor | None, recurrent: bool
    ) -> tuple[Tensor, Tensor]:
        # This gate is not a feature of the operator, which takes log decays as they are.
        decay = F.logsigmoid(self.g(x)).unflatten(-1, (self.heads, self.key_dim)) / 16
        carry = {"initial_state": memory, "output_final_state": True}
        if recurrent:
            return fused_recurrent_gla(q, k, v, gk=decay, **carry)
        return chunk_gla(q, k, v, g=decay, **carry)


MIXERS: dict[str, type[Mixer]] = {
    "gdn": GatedDeltaNet,
    "kda": KimiDeltaAttention,
    "gla": GatedLinearAttention,
}


class GatedMlp(nn.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 2 * width
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """Mixer and MLP, each after a norm and added to the residual stream."""

    def __init__(self, mixer: str, width: int, heads: int) -> None:
        super().__init__()
        self.mixer_norm = nn.RMSNorm(width, eps=1e-6)
        self.mixer = MIXERS[mixer](width, heads)
        self.mlp_norm = nn.RMSNorm(width, eps=1e-6)
        self.mlp = GatedMlp(width)

    def forward(
        self, x: Tensor, state: MixerState | None, recurrent: bool
    ) -> tuple[Tensor, MixerState]:
        mixed, state = self.mixer(self.mixer_norm(x), state, recurrent)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), state


class CharModel(nn.Module):
    """Logits of the next character; embedding and head share their weights.

    Args:
        vocabulary: number of characters.
        mixer: ``"gdn"``, ``"kda"`` or ``"gla"``.
        width, heads, blocks: size of the model.
    """

    def __init__(
        self, vocabulary: int, mixer: str, width: int = 128, heads: int = 4, blocks: int = 2
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(mixer, width, heads) for _ in range(blocks))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def forward(
        self, tokens: Tensor, states: list[MixerState] | None = None, recurrent: bool = False
    ) -> tuple[Tensor, list[MixerState]]:
        """Read ``tokens [B, T]``, from the beginning or from where ``states`` were taken.

        Returns:
            logits ``[B, T, vocabulary]`` and the state of each block after the last token.
        """
        x = self.embedding(tokens)
        after = []
        for block, state in zip(self.blocks, states or [None] * len(self.blocks), strict=True):
            x, state = block(x, state, recurrent)
            after.append(state)
        return F.linear(self.norm(x), self.embedding.weight), after
