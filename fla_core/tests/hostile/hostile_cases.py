"""Each hostile plugin, and what core says of it. Every file of ``plugins/`` is in one table."""

from __future__ import annotations

HONEST = ("honest", "also_honest")

BROKEN = {
    "raises_on_import": "load: ImportError: libmissing.so.12: cannot open shared object file",
    "exits_on_import": "load: SystemExit: no licence found",
    "panics_on_import": "load: PanicException: called `Option::unwrap()` on a `None` value",
    "sets_default_dtype": "load: changed torch: default dtype torch.float32 -> torch.float64",
    "replaces_matmul": "load: changed torch: torch.matmul replaced",
    "raises_in_hook": "load: ValueError: no kernels were built",
    "wrong_signature": "Argument(s) {'stream'} are declared in the hookimpl but can not be found",
    "misspelt_hook": "load: PluginValidationError: unknown hook 'fla_prove' in plugin",
    "no_card": "load: it has no fla_backend() hook (decorate it with fla_core.plugins.hookimpl)",
    "dict_card": "load: fla_backend() must return a Backend, got dict",
    "wrong_api": "load: it is written for plugin API 99, this core has 1: upgrade fla-kernels-core",
    "other_name": "load: Backend.name is 'somebody_else', its entry point is named 'other_name'",
    "wide_domain": "implementation wide_domain:simple_gla#chunk: domain: dtype int8 is not in the",
    "missing_kernel": "load: AttributeError: module 'hostile_missing_kernel' has no attribute",
    "hangs_in_probe": "probe: no answer for cpu within 0.2 s",
    "raises_in_probe": "probe: cpu: OSError: driver and library do not match",
    "exits_in_probe": "probe: cpu: SystemExit: 1",
    "probe_says_true": "probe: fla_probe() must return a Probe, got True",
}
"""Broken as a whole: left out, and an error when the user names them."""

FAULTY_VERIFIER = {
    "verifier_raises": "verifier raised KeyError: 'T'",
    "verifier_exits": "verifier raised SystemExit: 1",
    "verifier_says_yes": "verifier returned 'yes', not (True, None) or (False, reason)",
}
"""Their verifier cannot be trusted: passed over, and an error when the user names them."""

REFUSING = {
    "unknown_contract": "refused  CONTRACT no implementation of simple_gla",
    "future_revision": "refused  CONTRACT revision=99, wants ",
    "verifier_rewrites": "refused  VERIFIER not today",
}
"""Not broken, but of no use for the call."""

WRONG_FORWARD = {
    "returns_its_input": "output 'o' shares memory with 'v'",
    "outputs_share_memory": "output 'final_state' shares memory with \"output 'o'\"",
    "wrong_shape": "expected  float32[1, 5, 2, 4] on cpu\n  got       float32[1, 1, 2, 4] on cpu",
    "wrong_dtype": "expected  float32[1, 5, 2, 4] on cpu\n  got       float64[1, 5, 2, 4] on cpu",
    "wrong_device": "expected  float32[1, 5, 2, 4] on cpu\n  got       float32[1, 5, 2, 4] on meta",
    "forgets_the_state": "wrong number of outputs\n  expected  2: o, final_state\n  got       1",
    "not_a_tuple": "forward did not return (outputs, residuals)",
    "returns_lists": "two tuples of tensors\n  got       (list, list)",
    "returns_numbers": "output 'o' has the wrong shape, dtype or device",
    "mutates_input": "changed 'q' in place",
    "mutates_v_first": "changed 'v' in place",
    "exits_in_forward": "raised SystemExit(0), which would have ended the process",
}
"""Found on the first call of a signature, with or without gradients."""

WARNED = {
    "changes_torch_in_forward": "torch changed while changes_torch_in_forward:simple_gla#chunk ran:"
    " default dtype torch.float32 -> torch.float64.",
}
"""Told once and left as they are: another thread may have done it."""

WRONG_TRAINING = {
    "residuals_differ": "expected  float32[3] on cpu\n  got       float32[4] on cpu",
    "residuals_unannounced": "expected  none\n  got       float32[] on cpu",
    "residuals_not_tensors": "expected  float32[3] on cpu\n  got       dict",
    "residuals_raise": "residuals(call) raised ZeroDivisionError: division by zero",
    "mutates_second_time": "changed 'q' in place",
    "forgets_a_gradient": "backward returned no gradient of 'v'",
    "gradient_of_wrong_shape": "the gradient of 'v' has the wrong shape",
    "gradient_of_integers": "got       int64[1, 5, 2, 4] on cpu",
    "gradient_elsewhere": "got       float32[1, 5, 2, 4] on meta",
    "gradient_is_a_number": "expected  floating point, [1, 5, 2, 4] on cpu\n  got       float",
    "gradients_as_tuple": "backward did not return gradients by name",
    "gradient_is_an_input": "changed 'v' in place",
    "gradient_is_a_view": "the gradient of 'v' shares memory with 'v'",
    "mutates_gradient": "changed 'gradient of o' in place",
    "mutates_input_in_backward": "changed 'q' in place",
    "exits_in_backward": "raised SystemExit(0), which would have ended the process",
}
"""Found when gradients are wanted."""

RAISING = {
    "verifier_lies": ("RuntimeError", "misaligned address"),
    "raises_in_forward": ("RuntimeError", "CUDA error: an illegal memory access"),
    "raises_in_backward": ("RuntimeError", "CUDA error: misaligned address"),
}
"""Their own exception reaches the user, and no other backend runs instead."""

UNSEEN = {
    "wrong_numbers": (["o"], []),
    "wrong_gradient": (["dv"], []),
    "mutates_raw_pointer": (["dg", "dk", "dv"], ["q"]),
}
"""Beyond what core can see: wrong results and changed inputs that reach the user."""

UNSEEN_LATER = {
    "reuses_its_buffer": (["o"], []),
    "mutates_second_time": ([], ["q"]),
}
"""The same, from the second call of inference on."""

NAMES = ("twin_one", "twin_two", "impostor")
HANGING = ("hangs_on_import",)

EVERY = {
    *HONEST,
    *BROKEN,
    *FAULTY_VERIFIER,
    *REFUSING,
    *WRONG_FORWARD,
    *WARNED,
    *WRONG_TRAINING,
    *RAISING,
    *UNSEEN,
    *UNSEEN_LATER,
    *NAMES,
    *HANGING,
}
