"""The operator catalogue: every contract and every public operator, from the contracts."""

from __future__ import annotations

import inspect
import re
import sys
from types import ModuleType
from typing import Any

from tables import NOTICE, Incomplete, rows

from fla_core import ops
from fla_core.contract import Contract, TensorSpec
from fla_core.contracts import CONTRACTS, public_names

LETTERS = {
    "B": "batch; 1 when sequences are packed",
    "T": "tokens of a row; all tokens when packed",
    "H": "heads of q and k",
    "HV": "heads of v, a multiple of H",
    "K": "channels of a key",
    "V": "channels of a value",
    "N": "sequences: B, or `len(cu_seqlens) - 1` when packed",
    "NT": "chunks, over all sequences",
}
DTYPES = {
    "activation": "that of q",
    "float": "any float",
    "state": "float32; float64 beside float64 q",
}
FEATURES = {
    "varlen": "`cu_seqlens` is given",
    "narrow_state": "`initial_state` is float16 or bfloat16",
    "final_state": "`output_final_state=True`",
    "reverse": "`reverse=True`",
    "state_v_first": "`state_v_first=True`: states are [.., V, K]",
    "normalize": "`normalize=True`",
    "initial_z": "`initial_state` is a pair whose second member is not None",
    "l2norm": "`use_qk_l2norm_in_kernel=True`: q and k, in rows shorter than 1.8e19, become"
    " x / sqrt(sum x^2 + 1e-6)",
    "gate": "`use_gate_in_kernel=True`: g holds logits",
    "lower_bound": "`lower_bound` beside `use_gate_in_kernel=True`",
    "beta_sigmoid": "`use_beta_sigmoid_in_kernel=True`: beta becomes sigmoid(beta)",
    "neg_eigval": "`allow_neg_eigval=True`: twice that sigmoid",
    "states": "`return_intermediate_states=True`, without gradients",
    "beta_v": "beta has a channel axis, [.., V]",
    "gva": "HV differs from H: value head j reads key head j // (HV // H)",
}
INTRODUCTION = """# Operators

A *contract* is one mathematical function with its derivative. Public operators are names over it;
the name also asks for a *form*, which decides who is asked first, never what is computed. Names,
parameter order and defaults are those of flash-linear-attention 0.6.0; `backend=` and a few other
keywords come after them. [Differences](differences.md) lists where behaviour differs.

S_t is the state after token t, a K x V matrix for each sequence and head, and S_0 is
`initial_state` or zero. Gates are log decays: decay is exp(g), so g is not positive. `scale` is
K^-0.5 when it is not given.

"""
COMMON = """\
Every tensor input has a gradient, returned in that input's dtype. Gradients that arrive for `o` and
for the final state are both honoured. States are float32 beside 16-bit and float32 inputs, and a
16-bit `initial_state` is widened. `help(chunk_kda)` explains every argument of an operator.

"""


def page() -> str:
    """The whole page."""
    letters = rows(("letter", "axis"), [(f"`{letter}`", text) for letter, text in LETTERS.items()])
    parts = [NOTICE + INTRODUCTION + letters, COMMON + "## All names\n", _names()]
    parts += [_contract(contract) for contract in CONTRACTS.values()]
    return "\n".join(parts)


def _names() -> str:
    lines = [
        (f"[`{name}`](#{name})", f"[`{contract.name}`](#{anchor(contract)})", form)
        for name, (contract, form) in public_names().items()
    ]
    return rows(("operator", "contract", "form"), lines)


def anchor(contract: Contract) -> str:
    """Anchor of the section of a contract."""
    return f"contract-{contract.name}"


def _contract(contract: Contract) -> str:
    module = sys.modules[f"fla_core.contracts.{contract.name}"]
    equation = re.sub(r"[;:]\s{2}\s*", ";\n", contract.equation)
    domain = contract.domain
    axes = ", ".join(f"{axis} {allowed}" for axis, allowed in domain.axes.items())
    relations = "".join(f"; {relation}" for relation in domain.relations)
    return "\n".join(
        [
            f"## Contract {contract.name}\n",
            f"{summary(module)}\n",
            f"```text\n{equation}\n```\n",
            f"Source: {contract.source}. Revision {contract.revision}.\n",
            f"Dtypes of q: {', '.join(domain.dtypes)}. Sizes: {axes}{relations}.\n",
            _inputs(contract),
            _outputs(contract),
            _features(contract),
            *[_operator(name, form, contract) for name, form in contract.public],
        ]
    )


def _inputs(contract: Contract) -> str:
    lines = []
    for spec in contract.inputs:
        need = "optional" if spec.optional else "required"
        lines.append((f"`{spec.name}`", shape(spec), DTYPES[spec.dtype], need, spec.meaning))
    lines += [(f"`{option}`", "", "number", "optional", "see g") for option in contract.options]
    return rows(("input", "shape", "dtype", "", "meaning"), lines)


def _outputs(contract: Contract) -> str:
    lines = []
    for spec in contract.outputs:
        when = f"under `{spec.feature}`" if spec.feature else "always"
        gradient = "no (inference only)" if spec.name == "states" else "yes"
        cells = (f"`{spec.name}`", shape(spec), DTYPES[spec.dtype], when, gradient, spec.meaning)
        lines.append(cells)
    return rows(("output", "shape", "dtype", "returned", "takes a gradient", "meaning"), lines)


def shape(spec: TensorSpec) -> str:
    """Axes in brackets, with the alternative if there is one."""
    texts = [f"[{', '.join(text.split())}]" for text in (spec.shape, spec.alternative) if text]
    return " or ".join(texts) + (" or any shape of as many elements" if spec.any_shape else "")


def _features(contract: Contract) -> str:
    lines = []
    for feature in contract.features:
        lowered = [x for x in contract.lowerings if feature in x.features and not x.when_absent]
        absent = [x for x in contract.lowerings if feature in x.features and x.when_absent]
        text = f"`{lowered[0].name}`" if lowered else "none"
        text += f"; absent: `{absent[0].name}`" if absent else ""
        lines.append((f"`{feature}`", _meaning(contract, feature), text))
    return rows(("feature", "in use when", "lowering"), lines)


def _meaning(contract: Contract, feature: str) -> str:
    if feature in FEATURES:
        return FEATURES[feature]
    if any(spec.name == feature for spec in contract.inputs):
        return f"`{feature}` is given"
    raise Incomplete(f"docs/catalogue.py: FEATURES does not describe {feature!r}")


def _operator(name: str, form: str, contract: Contract) -> str:
    function: Any = getattr(ops, name)
    doc = inspect.cleandoc(function.__doc__ or "")
    if function.__name__ != name:
        doc = f"Another name of `{function.__name__}`."
    lines = [f"### {name}\n", f"{markdown(doc.partition(chr(10) * 2)[0])} Form: {form}.\n"]
    lines.append(f"```text\n{signature(name, function)}\n```\n")
    return "\n".join(lines)


def signature(name: str, function: Any) -> str:
    """The signature, without annotations, wrapped."""
    parameters = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in inspect.signature(function).parameters.values()
    ]
    texts, keyword_only = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            texts.append("*")
            keyword_only = True
        texts.append(str(parameter))
    lines, line = [], f"{name}("
    for text in [*(f"{text}, " for text in texts[:-1]), f"{texts[-1]})"]:
        if len(line + text) > 96:
            lines.append(line.rstrip())
            line = "    "
        line += text
    return "\n".join([*lines, line])


def summary(module: ModuleType) -> str:
    """First sentence of a module's docstring."""
    return markdown(inspect.cleandoc(module.__doc__ or "").partition("\n")[0])


def markdown(text: str) -> str:
    """Docstring text as Markdown."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(text.split())).replace("``", "`")
