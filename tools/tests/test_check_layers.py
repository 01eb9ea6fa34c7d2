"""The checker finds every kind of planted violation, and nothing in a tree that keeps the rules."""

from pathlib import Path

import pytest

import check_layers

TOOLS = Path(__file__).resolve().parent.parent

SOUND = {
    "fla_core/src/fla_core/__init__.py": "",
    "fla_core/src/fla_core/errors.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fla_core import dispatch\n"
    ),
    "fla_core/src/fla_core/_compat.py": "",
    "fla_core/src/fla_core/domain.py": "from fla_core import errors\n",
    "fla_core/src/fla_core/dispatch.py": "from .domain import x\ndef f():\n    import torch\n",
    "fla_core/src/fla_core/ops/__init__.py": "",
    "fla_core/src/fla_core/ops/kda.py": "import torch\nfrom fla_core import dispatch\n",
    "fla_core/src/fla_core/reference/__init__.py": "",
    "fla_core/src/fla_core/reference/kda.py": "import torch\n" + "x = 1\n" * 1000,
    "fla_core/src/fla_core/cli.py": "def main():\n    from fla_core.ops import kda\n",
    "fla_triton/src/fla_triton/__init__.py": "",
    "fla_triton/src/fla_triton/kernels/kda.py": "import triton\n" + "x = 1\n" * 1000,
    "fla_backend_cuda/src/fla_backend_cuda/__init__.py": "",
    "fla_backend_cuda/src/fla_backend_cuda/run.py": "import torch, fla_triton\n",
    "fla_backend_cuda/src/fla_backend_cuda/table.py": "",
    "fla_backend_cuda/src/fla_backend_cuda/plugin.py": (
        "from fla_core import errors\nfrom . import table\n"
    ),
    "fla_backend_rocm/src/fla_backend_rocm/__init__.py": "",
}
# `_compat` has no layer in the real table, so that the tests do not depend on one being added.
LAYERS = (*check_layers.LAYERS, ("_compat",))

PLANTED = {
    "upward": ("fla_core/src/fla_core/domain.py", "import fla_core.dispatch", "higher layer"),
    "upward, relative": (
        "fla_core/src/fla_core/reference/kda.py",
        "from ..cli import main",
        "higher layer",
    ),
    "upward, inside a function": (
        "fla_core/src/fla_core/errors.py",
        "def f():\n    from fla_core import ops",
        "fla_core.errors imports fla_core.ops, which is in a higher layer",
    ),
    "strangers": (
        "fla_core/src/fla_core/ops/kda.py",
        "from fla_core.reference import kda",
        "fla_core.ops.kda must not import fla_core.reference.kda",
    ),
    "no layer": ("fla_core/src/fla_core/misc.py", "", "fla_core.misc belongs to no layer"),
    "core imports backend": (
        "fla_core/src/fla_core/cli.py",
        "def g():\n    import fla_backend_cuda",
        "fla_core must not import fla_backend_cuda",
    ),
    "backend imports backend": (
        "fla_backend_rocm/src/fla_backend_rocm/__init__.py",
        "from fla_backend_cuda import table",
        "fla_backend_rocm must not import fla_backend_cuda",
    ),
    "backend imports a private module": (
        "fla_backend_rocm/src/fla_backend_rocm/__init__.py",
        "from fla_core import _compat",
        "private fla_core._compat",
    ),
    "core imports triton": (
        "fla_core/src/fla_core/ops/kda.py",
        "def f():\n    import triton.language",
        "fla_core must not import triton",
    ),
    "light module loads torch": (
        "fla_core/src/fla_core/errors.py",
        "try:\n    from torch import Tensor\nexcept ImportError:\n    pass",
        "fla_core.errors -> torch",
    ),
    "light module loads torch through another": (
        "fla_backend_cuda/src/fla_backend_cuda/table.py",
        "from fla_backend_cuda.run import x",
        "fla_backend_cuda.plugin -> fla_backend_cuda.table -> fla_backend_cuda.run -> torch",
    ),
    "light module loads torch through a parent": (
        "fla_backend_cuda/src/fla_backend_cuda/__init__.py",
        "import torch",
        "fla_backend_cuda.plugin -> fla_backend_cuda -> torch",
    ),
    "cycle": (
        "fla_core/src/fla_core/errors.py",
        "from fla_core.domain import x",
        "import cycle",
    ),
    "too long": ("fla_core/src/fla_core/ops/kda.py", "x = 1\n" * 330, "333 lines, at most 320"),
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(check_layers, "LAYERS", LAYERS)
    for name, text in SOUND.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_is_the_tool_of_this_tree() -> None:
    assert check_layers.__file__ == str(TOOLS / "check_layers.py")


def test_sound_tree_passes(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_layers.check(tree) == []
    assert check_layers.main([str(tree)]) == 0
    assert capsys.readouterr().out == f"{len(SOUND)} modules, 0 violations\n"


@pytest.mark.parametrize(("file", "text", "message"), PLANTED.values(), ids=PLANTED.keys())
def test_planted_violation_is_found(tree: Path, file: str, text: str, message: str) -> None:
    path = tree / file
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(f"{before}{text}\n", encoding="utf-8")
    assert message in "\n".join(map(str, check_layers.check(tree)))
    assert check_layers.main([str(tree)]) == 1


def test_an_empty_tree_is_not_a_success(tmp_path: Path) -> None:
    assert check_layers.main([str(tmp_path)]) == 1
