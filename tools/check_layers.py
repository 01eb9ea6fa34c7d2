"""Check that imports point downwards, light modules stay light and modules stay small.

Usage: ``python tools/check_layers.py [repository]``. Prints one line per violation and exits with
status 1 if there is any. An import inside a function counts like any other: knowing a higher
layer is the fault, not when it is loaded. One for types only may point upwards, since it is never
executed. The rules on light modules and on cycles look at import time alone.
"""

import ast
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

# --- The rules -----------------------------------------------------------------------------------

# Folder and package of each distribution, and the packages of the project it may import.
DISTRIBUTIONS = {
    ("fla_core", "fla_core"): (),
    ("fla_triton", "fla_triton"): ("fla_core",),
    ("fla_backend_cuda", "fla_backend_cuda"): ("fla_core", "fla_triton"),
    ("fla_backend_rocm", "fla_backend_rocm"): ("fla_core", "fla_triton"),
    ("fla_backend_xpu", "fla_backend_xpu"): ("fla_core", "fla_triton"),
    ("fla_backend_ascend", "fla_backend_ascend"): ("fla_core", "fla_triton"),
    ("fla_backend_tilelang", "fla_backend_tilelang"): ("fla_core",),
    ("conformance", "fla_conformance"): ("fla_core",),
}

# Layers of the core, highest first. A module imports from its own layer or from lower ones.
# "" is the package's own __init__.
LAYERS = (
    ("cli", "testing"),
    ("",),
    ("ops", "reference"),
    # Running a planned call, eagerly and as a torch operator.
    (
        "audit",
        "autograd",
        "execute",
        "gathered",
        "invoke",
        "outputs",
        "pooled",
        "prepare",
        "torch_ops",
    ),
    ("dispatch",),
    ("plugins",),
    # What a call means: its contract, its checks, the features that lower to the base form.
    (
        "call",
        "check",
        "contract",
        "contracts",
        "differentiable",
        "domain",
        "dtypes",
        "lower",
        "lowerings",
        "normaliser",
        "seqlens",
        "slots",
        "verify",
    ),
    ("errors",),
)

# Neighbours in one layer that must not know each other: the reference is a plugin like any other.
STRANGERS = (("ops", "reference"), ("reference", "ops"))

# Toolchains, which a light module must not load when it is imported.
HEAVY = ("torch", "torch_npu", "triton", "tilelang")

# Modules that may load a toolchain when imported; all others are light. `import fla_core`,
# contracts and plugin discovery work without torch; `doctor` runs where importing torch fails.
HEAVY_ALLOWED = (
    "fla_core.cli.calls.*",
    "fla_core.ops",
    "fla_core.ops.*",
    "fla_core.reference.*",
    "fla_core.audit",
    "fla_core.autograd",
    "fla_core.autograd.*",
    "fla_core.execute",
    "fla_core.gathered",
    "fla_core.invoke",
    "fla_core.pooled",
    "fla_core.torch_ops",
    "fla_core.torch_ops.*",
    "fla_core.check",
    "fla_core.differentiable",
    "fla_core.dtypes",
    "fla_core.outputs",
    "fla_core.prepare",
    "fla_core.lower",
    "fla_core.lowerings",
    "fla_core.normaliser",
    "fla_core.seqlens",
    "fla_core.slots",
    "fla_triton.*",
    "fla_backend_*.*",
    "fla_conformance.*",
)
ALWAYS_LIGHT = ("fla_core.reference.plugin", "fla_backend_*.plugin", "fla_triton.declared")

# What a package never imports, not even inside a function.
NEVER = {"fla_core": ("triton", "tilelang")}

MAX_LINES = 320
ANY_LENGTH = ("fla_core.reference.*", "*.kernels", "*.kernels.*")

# -------------------------------------------------------------------------------------------------


When = Literal["import", "call", "types"]


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: ``from a import b`` is ``a.b`` where that is a module, else ``a``."""

    target: str
    line: int
    when: When


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    path: Path
    package: str
    may_import: tuple[str, ...]
    lines: int
    imports: tuple[Import, ...]


@dataclass(frozen=True, slots=True)
class Violation:
    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def check(root: Path) -> list[Violation]:
    """Return every violation under ``root``, in order of path and line."""
    modules = {module.name: module for module in load(root)}
    found = [
        violation for module in modules.values() for violation in check_module(module, modules)
    ]
    return sorted([*found, *cycles(modules)], key=lambda fault: (fault.path, fault.line))


def check_module(module: Module, modules: Mapping[str, Module]) -> Iterator[Violation]:
    if module.lines > MAX_LINES and not matches(module.name, ANY_LENGTH):
        yield Violation(module.path, 1, f"{module.lines} lines, at most {MAX_LINES} allowed")
    if module.package == "fla_core" and layer(module.name) is None:
        yield Violation(module.path, 1, f"{module.name} belongs to no layer")
    for item in module.imports:
        for message in import_faults(module, item, modules):
            yield Violation(module.path, item.line, message)


def import_faults(module: Module, item: Import, modules: Mapping[str, Module]) -> Iterator[str]:
    top = item.target.partition(".")[0]
    packages = {package for _, package in DISTRIBUTIONS}
    if top in packages and top != module.package:
        yield from foreign_faults(module, item, top)
    if top == module.package == "fla_core" and item.when != "types":
        yield from layer_faults(module.name, item.target)
    if top in NEVER.get(module.package, ()):
        yield f"{module.package} must not import {top}"
    if item.when == "import" and is_light(module.name):
        chain = chain_to_heavy(module.name, item.target, modules)
        if chain:
            yield f"must not load a toolchain when imported: {' -> '.join(chain)}"


def chain_to_heavy(start: str, target: str, modules: Mapping[str, Module]) -> list[str]:
    """Return how ``start`` loads a toolchain by importing ``target``, or an empty list."""
    waiting, seen = [[start, target]], {start}
    while waiting:
        chain = waiting.pop()
        if chain[-1].partition(".")[0] in HEAVY:
            return chain
        for name in with_parents(chain[-1]):
            if name in modules and name not in seen:
                seen.add(name)
                imports = (item for item in modules[name].imports if item.when == "import")
                waiting += [[*chain[:-1], name, item.target] for item in imports]
    return []


def with_parents(name: str) -> list[str]:
    """``a.b.c`` is loaded after ``a`` and ``a.b``."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def cycles(modules: Mapping[str, Module]) -> Iterator[Violation]:
    """Report one cycle of modules that import each other when imported, if there is any."""
    graph = {
        name: {item.target for item in module.imports if item.when == "import"} & modules.keys()
        for name, module in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        names = error.args[1]
        yield Violation(modules[names[0]].path, 1, f"import cycle: {' <- '.join(names)}")


def foreign_faults(module: Module, item: Import, top: str) -> Iterator[str]:
    if top not in module.may_import:
        yield f"{module.package} must not import {top}"
    elif any(part.startswith("_") for part in item.target.split(".")):
        yield f"{module.package} must not import the private {item.target}"


def layer_faults(importer: str, imported: str) -> Iterator[str]:
    above, below = layer(importer), layer(imported)
    if above is None or below is None:
        return
    if below < above:
        yield f"{importer} imports {imported}, which is in a higher layer"
    elif (section(importer), section(imported)) in STRANGERS:
        yield f"{importer} must not import {imported}"


def section(name: str) -> str:
    """The part of a core module's name that decides its layer: ``ops`` of ``fla_core.ops.kda``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def layer(name: str) -> int | None:
    """The layer's index, 0 the highest, or None for a module of no layer."""
    return next((index for index, names in enumerate(LAYERS) if section(name) in names), None)


def is_light(name: str) -> bool:
    return matches(name, ALWAYS_LIGHT) or not matches(name, HEAVY_ALLOWED)


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def load(root: Path) -> list[Module]:
    """Parse every module of every distribution found under ``root``."""
    files = {
        module_name(path, root / folder / "src"): (path, package, may_import)
        for (folder, package), may_import in DISTRIBUTIONS.items()
        for path in sorted((root / folder / "src" / package).rglob("*.py"))
    }
    modules = []
    for name, (path, package, may_import) in files.items():
        text = path.read_text(encoding="utf-8")
        base = name if path.name == "__init__.py" else name.rpartition(".")[0]
        tree = ast.parse(text, filename=str(path))
        imports = tuple(dict.fromkeys(find_imports(tree.body, base, files, "import")))
        lines = len(text.splitlines())
        where = path.relative_to(root)
        modules.append(Module(name, where, package, may_import, lines, imports))
    return modules


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_imports(
    nodes: Iterable[ast.AST], base: str, known: Container[str], when: When
) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, when)
        elif isinstance(node, ast.ImportFrom):
            for target in from_targets(node, base, known):
                yield Import(target, node.lineno, when)
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            yield from find_imports(node.body, base, known, "types")
            yield from find_imports(node.orelse, base, known, when)
        else:
            deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            inner = "call" if deferred else when
            yield from find_imports(ast.iter_child_nodes(node), base, known, inner)


def from_targets(node: ast.ImportFrom, base: str, known: Container[str]) -> Iterator[str]:
    origin = node.module or ""
    if node.level:
        anchor = base.split(".")[: len(base.split(".")) - node.level + 1]
        origin = ".".join([*anchor, origin] if origin else anchor)
    for alias in node.names:
        member = f"{origin}.{alias.name}"
        yield member if member in known else origin


def is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    count = len(load(root))
    if not count:
        print(f"no module found under {root}")
        return 1
    violations = check(root)
    for violation in violations:
        print(violation)
    print(f"{count} modules, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
