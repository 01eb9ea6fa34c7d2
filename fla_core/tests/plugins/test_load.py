"""Everything a plugin can get wrong when it is loaded stays with its record, in clear words."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from fakes import domain, implementation, module, plugin
from fla_core.domain import AxisRange, Domain
from fla_core.errors import PluginLoadError
from fla_core.plugins import Validity, hookimpl
from fla_core.plugins.discover import in_memory
from fla_core.plugins.load import load
from fla_core.plugins.record import Origin, PluginRecord, State


def _loaded(record: PluginRecord) -> PluginRecord:
    load(record)
    return record


def _text(record: PluginRecord) -> str:
    assert _loaded(record).state is State.BROKEN
    assert record.implementations == ()
    return record.summary()


def test_a_good_plugin_loads() -> None:
    record = _loaded(plugin("acme", implementation("gla"), implementation("kda", "fast")))
    assert record.state is State.LOADED
    assert record.summary() == "loaded"
    assert [item.variant for item in record.implementations] == ["chunk", "fast"]
    assert record.to_json()["implementations"] == ["gla#chunk", "kda#fast"]
    assert record.to_json()["backend"]["toolchain"] == "triton"


@pytest.mark.parametrize(
    ("card", "text"),
    [
        ({"api": 7}, "written for plugin API 7, this core has 1: upgrade fla-kernels-core"),
        ({"api": 0}, "written for plugin API 0, this core has 1: upgrade the plugin"),
        ({"api": "1"}, "Backend.api must be an int, got '1'"),
        ({"targets": "cuda"}, "Backend.targets must be a tuple of strings, got 'cuda'"),
        ({"targets": ()}, "Backend.targets must name at least one device type, got ()"),
        ({"targets": (1,)}, "Backend.targets must be a tuple of strings, got (1,)"),
        ({"toolchain": None}, "Backend.toolchain must be a string, got None"),
        ({"toolchain": "Tri ton"}, "Backend.toolchain must be a lower-case name, got 'Tri ton'"),
        ({"requires": "triton"}, "Backend.requires must be a tuple of strings, got 'triton'"),
        ({"requires": ("tri ton!",)}, "Backend.requires: 'tri ton!' is not a requirement"),
        ({"priority": "first"}, "Backend.priority must be an int, got 'first'"),
        ({"priority": True}, "Backend.priority must be an int, got True"),
        ({"description": 3}, "Backend.description must be a string, got 3"),
    ],
)
def test_card_is_checked_field_by_field(card: dict[str, Any], text: str) -> None:
    assert text in _text(plugin("acme", **card))


def test_card_name_must_be_the_entry_points() -> None:
    record = in_memory("acme", module("other"))
    assert "Backend.name is 'other', its entry point is named 'acme'" in _text(record)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"variant": "a b"}, "variant must be letters, digits, '_', '.' or '-', got 'a b'"),
        ({"revision": "1"}, "revision must be an int, got '1'"),
        ({"domain": None}, "domain must be a Domain, got NoneType"),
        ({"forward": "no colon"}, "forward must be a callable or 'module:function'"),
        ({"forward": None}, "forward must be a callable or 'module:function', got None"),
        ({"backward": 3}, "backward must be a callable or 'module:function', got 3"),
        ({"verifier": "x y:z"}, "verifier must be a callable or 'module:function', got 'x y:z'"),
        ({"forms": "chunk"}, "forms must be a tuple of strings, got 'chunk'"),
        ({"gradients": {"q"}}, "gradients must be None or a frozenset of names"),
        ({"gradients": frozenset({"w"})}, "gradients: gla has no input 'w'"),
        ({"domain": domain("l2norm")}, "domain: feature 'l2norm' is not in the contract"),
        ({"domain": domain(K=AxisRange(0))}, "domain: axis K >= 0 exceeds the contract's >= 1"),
        ({"domain": domain(HV=AxisRange(1))}, "gla has no axis 'HV'; it has B, T, N, H, K, V"),
        ({"reads": ("Q",)}, "gla has no axis 'Q'"),
        ({"domain": Domain(("int8",))}, "domain: dtype int8 is not in the contract"),
    ],
)
def test_implementations_are_checked(changes: dict[str, Any], text: str) -> None:
    summary = _text(plugin("acme", implementation(**changes)))
    assert text in summary
    assert summary.startswith("broken: load: implementation acme:gla#")


def test_a_method_of_an_object_may_be_named() -> None:
    record = _loaded(plugin("acme", implementation(forward="acme.kernels:gla.forward")))
    assert record.state is State.LOADED


def test_a_broken_plugin_keeps_its_card() -> None:
    record = _loaded(plugin("acme", implementation(domain=None), targets=("xpu",), priority=7))
    assert record.state is State.BROKEN
    assert record.serves("xpu")
    assert record.priority == 7


def test_variants_are_unique() -> None:
    record = plugin("acme", implementation(), implementation())
    assert "gla#chunk is declared twice" in _text(record)


def test_things_that_are_not_implementations() -> None:
    assert "must yield Implementation, got str" in _text(plugin("acme", "gla"))  # type: ignore[arg-type]


def test_an_unknown_contract_costs_only_its_implementation() -> None:
    record = _loaded(plugin("acme", implementation("hyena"), implementation("gla")))
    assert record.state is State.LOADED
    assert record.notes == ["this core has no contract 'hyena'; acme:hyena#chunk is unused"]


def test_an_older_revision_is_not_measured_by_the_new_domain() -> None:
    record = plugin("acme", implementation(revision=0, domain=domain("long_gone")))
    assert _loaded(record).state is State.LOADED


ROW = Validity("acme:gla#*", "*", "sm90", "triton>=3.4,<3.7.1", "denied", "it miscompiles")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"implementation": "other:gla#*"}, "must be about acme:..., got 'other:gla#*'"),
        ({"direction": "sideways"}, "direction must be forward, backward or *, got 'sideways'"),
        ({"status": "bad"}, "status must be ok, denied or unverified, got 'bad'"),
        ({"reason": ""}, "a row that is denied needs a reason"),
        ({"toolchain": "triton>>3"}, "validity: toolchain: 'triton>>3' is not a requirement"),
    ],
)
def test_validity_rows_are_checked(changes: dict[str, Any], text: str) -> None:
    assert text in _text(plugin("acme", validity=[replace(ROW, **changes)]))


def test_things_that_are_not_rows() -> None:
    assert "fla_validity() must yield Validity, got str" in _text(plugin("acme", validity=["no"]))


def test_a_name_no_plugin_may_have() -> None:
    assert "the name 'auto' is reserved" in in_memory("auto", module("auto")).summary()


def test_hooks_must_return_what_they_promise() -> None:
    made = module()
    made.fla_implementations = hookimpl(lambda: 3)
    made.fla_implementations.__name__ = "fla_implementations"
    assert "fla_implementations() must return an iterable, got int" in _text(
        in_memory("acme", made)
    )


def test_a_module_without_card() -> None:
    assert "it has no fla_backend() hook" in _text(in_memory("acme", ModuleType("empty")))


def test_card_of_another_type() -> None:
    made = ModuleType("odd")

    @hookimpl
    def fla_backend() -> str:
        return "acme"

    made.fla_backend = fla_backend
    assert "fla_backend() must return a Backend, got str" in _text(in_memory("acme", made))


def test_an_unknown_hook_is_named() -> None:
    made = module()

    @hookimpl
    def fla_bakcend() -> None: ...

    made.fla_bakcend = fla_bakcend
    assert "fla_bakcend" in _text(in_memory("acme", made))


def test_a_hook_with_unknown_arguments_is_named() -> None:
    made = module()

    @hookimpl
    def fla_probe(gadget: str) -> None: ...

    made.fla_probe = fla_probe
    assert "gadget" in _text(in_memory("acme", made))


def _plugin_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, text: str) -> PluginRecord:
    (tmp_path / "a_plugin.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_plugin", raising=False)
    return PluginRecord("acme", Origin("acme-kernels", "1.2", editable=True), "a_plugin")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import libnothing", "ModuleNotFoundError: No module named 'libnothing'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("1 +", "SyntaxError"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
    ],
)
def test_errors_at_import_are_contained(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, source: str, text: str
) -> None:
    record = _plugin_file(tmp_path, monkeypatch, source)
    assert text in _text(record)
    assert record.failure is not None
    assert record.failure.cause is not None


def test_an_interrupt_is_not_swallowed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record = _plugin_file(tmp_path, monkeypatch, "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load(record)


def test_a_missing_attribute_of_the_entry_point(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = _plugin_file(tmp_path, monkeypatch, "")
    record.target = "a_plugin:PLUGIN"
    assert "has no attribute 'PLUGIN'" in _text(record)


def test_unmet_requirements_make_it_unavailable() -> None:
    record = _loaded(plugin("acme", requires=("pluggy>=999",)))
    assert record.state is State.UNAVAILABLE
    assert record.summary().startswith("unavailable: needs pluggy>=999, found ")
    record = _loaded(plugin("acme", requires=("no-such-toolchain>=1",)))
    assert record.summary().endswith("needs no-such-toolchain>=1, which is not installed")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("torch.set_default_dtype(torch.float64)", "default dtype torch.float32 -> torch.float64"),
        ("torch.set_grad_enabled(False)", "grad mode True -> False"),
        ("torch.use_deterministic_algorithms(True)", "deterministic algorithms False -> True"),
        ("torch.matmul = lambda a, b: a", "torch.matmul replaced"),
        ("torch.Tensor.__matmul__ = lambda a, b: a", "torch.Tensor.__matmul__ replaced"),
        ("torch.Tensor.matmul = lambda a, b: a", "torch.Tensor.matmul replaced"),
        ("torch.set_num_threads(torch.get_num_threads() + 1)", "number of threads"),
        ("torch.set_default_device('meta')", "default device cpu -> meta"),
        ("torch.set_float32_matmul_precision('high')", "precision highest -> high"),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", "precision highest -> ('tf32', "),
    ],
)
def test_changing_torch_is_undone_and_reported(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, source: str, text: str
) -> None:
    torch = pytest.importorskip("torch")
    before = (torch.matmul, torch.Tensor.__matmul__, torch.Tensor.matmul, torch.get_num_threads())
    hook = "import fakes\nfla_backend = fakes.module().fla_backend"
    record = _plugin_file(tmp_path, monkeypatch, f"import torch\n{source}\n{hook}")
    load(record)
    assert record.summary().startswith("broken: load: changed torch: ")
    assert text in record.summary()
    now = (torch.matmul, torch.Tensor.__matmul__, torch.Tensor.matmul, torch.get_num_threads())
    assert now == before
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()
    assert torch.empty(0).device.type == "cpu"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"


def test_load_error_reads_well_and_survives_pickling() -> None:
    record = plugin("acme", api=7)
    load(record)
    record.origin = Origin("acme-kernels", "1.2", editable=True)
    error = pickle.loads(pickle.dumps(PluginLoadError(record)))
    assert str(error).splitlines() == [
        "backend 'acme' cannot be used",
        f"  state  {record.summary()}",
        "  from   acme-kernels 1.2 (editable)",
        "  next   fla-kernels doctor",
    ]
