"""What a layer's raw arguments become: unit vectors, log decays, writing strengths; and slopes.

    x / sqrt(sum x^2 + 1e-6)
    -r softplus(x),  or with a bound L:  L sigmoid(r x);  r = exp(A_log), x with dt_bias in it
    sigmoid(x),  or twice that

In float32. Only exponents that are not positive are exponentiated.
"""

import triton
import triton.language as tl

EPSILON = tl.constexpr(1e-6)
"""The contracts' own, below the root."""


@triton.jit
def reciprocal_root(squares):
    """What makes vectors units, from their sums of squares; of zero, the largest there is."""
    return tl.rsqrt(squares + EPSILON)


@triton.jit
def reciprocal_norm(x, AXIS: tl.constexpr):
    """What makes vectors along an axis units."""
    return reciprocal_root(tl.sum(x * x, AXIS))


@triton.jit
def log_of_one_plus(y):
    """``log(1 + y)`` for y in [0, 1], to the last digits of y however small that is.

    Twice the inverse hyperbolic tangent of ``z = y / (2 + y) <= 1/3``, whose series is cut where
    the next term is 1.4e-8 of the first.
    """
    z = y / (2.0 + y)
    w = z * z
    tail = 1.0 / 11.0 + w * (1.0 / 13.0)
    tail = 1.0 / 7.0 + w * (1.0 / 9.0 + w * tail)
    return 2.0 * z * (1.0 + w * (1.0 / 3.0 + w * (1.0 / 5.0 + w * tail)))


@triton.jit
def sigmoid(x):
    """``1 / (1 + exp(-x))``, to its last digits at both ends."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def sigmoid_slope(x):
    """The derivative of ``sigmoid``, to its last digits at both ends."""
    small = tl.exp(-tl.abs(x))
    return small / ((1.0 + small) * (1.0 + small))


@triton.jit
def writing_strength(x, SIGMOID: tl.constexpr, DOUBLED: tl.constexpr):
    """What is given as beta, or ``sigmoid`` of it, or twice that."""
    if SIGMOID:
        x = sigmoid(x)
        if DOUBLED:
            x *= 2.0
    return x


@triton.jit
def log_decay(x, rate, bound, BOUNDED: tl.constexpr):
    """The log decay that logits stand for."""
    if BOUNDED:
        found = bound * sigmoid(rate * x)
    else:
        rising = tl.where(x > 0.0, x, 0.0) + log_of_one_plus(tl.exp(-tl.abs(x)))
        found = -rate * rising
    return found


@triton.jit
def log_decay_slopes(x, rate, bound, BOUNDED: tl.constexpr):
    """Derivatives of the log decay by its logits, and by A_log."""
    if BOUNDED:
        by_logits = bound * rate * sigmoid_slope(rate * x)
        by_rate = by_logits * x
    else:
        by_logits = -rate * sigmoid(x)
        by_rate = log_decay(x, rate, bound, BOUNDED)
    return by_logits, by_rate


@triton.jit
def rate_of(a_log, h, HAS_RATE: tl.constexpr):
    """``exp(A_log)`` of a head; one where there is none."""
    rate = 1.0
    if HAS_RATE:
        rate = tl.exp(tl.load(a_log + h).to(tl.float32))
    return rate
