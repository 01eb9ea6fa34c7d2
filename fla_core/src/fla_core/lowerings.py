"""Features turned into the base form, each as a pure, differentiable torch function.

``NAME(call)`` returns a call without the feature; ``lift_NAME(outputs, call)`` turns the outputs
of the lowered call into those of the raw call. Nothing here knows autograd: the backward pass
re-runs the lowering and lets torch differentiate it. The float64 oracle is the token recurrence
behind the same functions, so a fused implementation of a feature and this definition of it are
compared wherever the feature is tested.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fla_core import normaliser
from fla_core.call import Call
from fla_core.dtypes import wide

Outputs = dict[str, Tensor]


def _widest(*tensors: Tensor | None) -> torch.dtype:
    doubles = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if doubles else torch.float32


def l2norm(call: Call) -> Call:
    """x / sqrt(sum x^2 + 1e-6) for q and k, over the last dimension.

    Zero where the sum overflows, in float32 from lengths of 1.8e19 on. Looking for such rows would
    read q and k once more in each call; kernels that normalise products return NaN there.
    """

    def unit(x: Tensor) -> Tensor:
        wider = x.to(wide(x))
        # The gradient of a reciprocal root is its cube, which vanishes from lengths of 1e15 on.
        return (wider / (wider.square().sum(-1, keepdim=True) + 1e-6).sqrt()).to(x.dtype)

    return call.but(q=unit(call.q), k=unit(call.k))


def beta_sigmoid(call: Call) -> Call:
    """beta := sigmoid(beta), doubled under neg_eigval so that eigenvalues reach [-1, 1]."""
    beta = call.beta
    strength = beta.to(wide(beta)).sigmoid()
    return call.but(beta=2 * strength if "neg_eigval" in call.features else strength)


def gate(call: Call) -> Call:
    """Log decay from its logits, per head or per key channel.

    Without a bound ``g := -exp(A_log) softplus(g + dt_bias)``; with ``lower_bound = L`` it is
    ``L sigmoid(exp(A_log) (g + dt_bias))``, in [L, 0); an absent A_log counts as rate one.
    """
    g: Tensor = call.g
    bound = call.options.get("lower_bound")
    decay = log_decay(g, call.A_log, call.dt_bias, bound, channels=g.dim() == 4)
    return call.but(g=decay, A_log=None, dt_bias=None)


def log_decay(
    logits: Tensor,
    a_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    channels: bool,
) -> Tensor:
    """Gate activation of ``[..., HV]`` or ``[..., HV, K]`` logits, in float32 (or float64)."""
    x = logits.to(_widest(logits, a_log, dt_bias))
    if dt_bias is not None:
        x = x + dt_bias.to(x.dtype).reshape(x.shape[-2:] if channels else x.shape[-1:])
    rate = None
    if a_log is not None:
        rate = a_log.to(x.dtype).exp().reshape((x.shape[-2], 1) if channels else x.shape[-1:])
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(x if rate is None else rate * x)
    decay = F.softplus(x)
    return -decay if rate is None else -rate * decay


def gva(call: Call) -> Call:
    """Repeat q and k so that value head j reads key head ``j // (HV // H)``."""
    group = call.v.shape[2] // call.q.shape[2]
    return call.but(
        q=call.q.repeat_interleave(group, dim=2), k=call.k.repeat_interleave(group, dim=2)
    )


def g_gamma(call: Call) -> Call:
    """A decay of each head becomes one of each token and head."""
    gamma, g, q = call.g_gamma, call.get("g"), call.q
    spread = gamma.to(_widest(gamma, g)).expand(q.shape[:3])
    return call.but(g=spread if g is None else g + spread, g_gamma=None)


def default_g(call: Call) -> Call:
    """No gate is a gate of zero."""
    v = call.v
    return call.but(g=v.new_zeros(v.shape[:3], dtype=wide(v)))


def default_gk(call: Call) -> Call:
    """No gate on key channels is a gate of zero."""
    k = call.k
    return call.but(gk=k.new_zeros(k.shape, dtype=wide(k)))


def default_beta(call: Call) -> Call:
    """No writing strength is one of one."""
    v = call.v
    return call.but(beta=v.new_ones(v.shape[:3], dtype=wide(v)))


def narrow_state(call: Call) -> Call:
    """A 16-bit state is widened before the recurrence, which never rounds its own."""
    return call.but(initial_state=call.initial_state.to(wide(call.q)))


def state_v_first(call: Call) -> Call:
    """The state arrives as ``[N, HV, V, K]``."""
    state = call.get("initial_state")
    return call if state is None else call.but(initial_state=state.transpose(-1, -2))


def _own(view: Tensor) -> Tensor:
    """A contiguous copy; ``contiguous()`` returns the view itself where an axis has one entry."""
    return view.clone(memory_format=torch.contiguous_format)


def lift_state_v_first(outputs: Outputs, call: Call) -> Outputs:
    """The state leaves as ``[N, HV, V, K]``."""
    turned: Outputs = {
        name: _own(outputs[name].transpose(-1, -2))
        for name in ("final_state", "states")
        if name in outputs
    }
    return {**outputs, **turned}


def _reversed_time(call: Call, tensor: Tensor) -> Tensor:
    if call.seqlens is None:
        return tensor.flip(1)
    cu = call.seqlens.device.long()
    position = torch.arange(tensor.shape[1], device=cu.device)
    sequence = torch.searchsorted(cu[1:], position, right=True)
    return tensor.index_select(1, cu[sequence] + cu[sequence + 1] - 1 - position)


_TIMED = ("q", "k", "v", "g", "gk", "gv", "beta")


def reverse(call: Call) -> Call:
    """Walk every sequence from its last token to its first."""
    timed = {name: t for name in _TIMED if (t := call.get(name)) is not None}
    return call.but(**{name: _reversed_time(call, t) for name, t in timed.items()})


def lift_reverse(outputs: Outputs, call: Call) -> Outputs:
    """Outputs back in the order of the tokens; the state is that after the first token."""
    return {**outputs, "o": _reversed_time(call, outputs["o"])}


def normalize(call: Call) -> Call:
    """Carry the normaliser as further value channels, of ones: their state columns are z.

    Bfloat16 stays, since its rounding is the caller's own and its range that of float32. Float16 is
    widened: a sum of thousands of scores, which no caller sees, would overflow. The lowered call
    always has an initial state, so that its features do not depend on which of state and z were
    given.
    """
    state, z = call.get("initial_state"), call.get("initial_z")
    kept = call.q.dtype == torch.bfloat16
    q, k, v = (x if kept else x.to(wide(x)) for x in (call.q, call.k, call.v))
    more, channels = v.new_ones(1), normaliser.CHANNELS
    count = k.shape[0] if call.seqlens is None else call.seqlens.count
    shape = (count, k.shape[2], k.shape[3])
    if z is not None:
        z = z.to(wide(v) if state is None else state.dtype).view(*shape, 1)
    if kept and q.requires_grad:
        start = None if z is None else z.detach().squeeze(-1)
        q = normaliser.balanced(q, k.detach(), start, call.scale, call.seqlens)
    if state is None and z is None:
        state = v.new_zeros(*shape, v.shape[-1] + channels, dtype=wide(v))
    else:
        if state is None:
            state = v.new_zeros(*shape, v.shape[-1], dtype=wide(v))
        columns = state.new_zeros(*shape, 1) if z is None else z
        state = torch.cat([state, columns.expand(*shape, channels)], dim=-1)
    return call.but(
        q=q,
        k=k,
        v=torch.cat([v, more.expand(*v.shape[:-1], channels)], dim=-1),
        initial_state=state,
        initial_z=None,
    )


def lift_normalize(outputs: Outputs, call: Call) -> Outputs:
    """Divide by ``scale q_t.z_t + 1e-10`` and split the state into its parts."""
    o, state, width = outputs["o"], outputs["final_state"], call.v.shape[-1]
    if o.dtype == torch.bfloat16:
        lifted = {"o": normaliser.divided(o, width)}
    else:
        weight = o[..., width : width + 1] + normaliser.EPS
        lifted = {"o": (o[..., :width] / weight).to(call.q.dtype)}
    if "final_state" in call.features:
        lifted["final_state"] = _own(state[..., :width])
    lifted["final_z"] = _own(state[..., width].unsqueeze(1))
    return lifted
