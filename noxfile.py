"""Every check of the project, each a session. CI runs the default ones and nothing else.

    nox                        what CI runs
    nox -s core -- -k kda      one distribution's tests; arguments go to pytest
    nox -R -s core             the same without touching the environment

Sessions share one environment, built by ``dev``, because installing torch takes longer than most
of them. Only ``wheels`` installs into a fresh one: that is its point.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
CONSTRAINTS = ROOT / "constraints-dev.txt"
ENVIRONMENTS = ROOT / ".nox"
SCRIPTS = "Scripts" if os.name == "nt" else "bin"

BACKENDS = (
    "fla_backend_cuda",
    "fla_backend_rocm",
    "fla_backend_xpu",
    "fla_backend_ascend",
    "fla_backend_tilelang",
)
DISTRIBUTIONS = ("fla_core", "fla_triton", *BACKENDS, "conformance")
TEST_TOOLS = (
    "editables",
    "hatchling",
    "matplotlib",
    "mypy",
    "numpy",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
)
TEST_TIMEOUT_SECONDS = 300
COMPILED_IN_CI = ("sm90", "gfx942")
COMPILED_AT_NIGHT = (
    "sm80",
    "sm90",
    "sm100",
    "sm120",
    "gfx90a",
    "gfx942",
    "gfx950",
    "gfx1100",
    "gfx1201",
)
DTYPES_AT_NIGHT = ("--dtypes", "bfloat16", "float16", "float32")
INTERPRETED = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250", "pvc", "bmg", "dg2")
# All contracts, in patterns of which each takes a compiler about as long; those of Intel's, which
# takes longest, leave together what shares kernels (kda and gdn2), and the shortest to the end.
HALVES = ("*a", "*[!a]")
INTEL_PARTS = ("[dgs][!d]*", "?d*", "[!dgs][!d]*")
XPU_PYTHONS = ("3.10", "3.11", "3.12")
# Takes most of its distribution's time, and no Triton.
NO_TRITON = "fla_backend_cuda/tests/test_timed_calls.py"
# Long enough that a worker a core pays; by file, since fixtures build wheels once a module.
PARALLEL = ("fla_core", "conformance", "examples", "docs")
# The suite as its users run it, on the sample plugins and on the generated one: of session suite.
VERDICTS = ("conformance/tests/test_samples.py", "conformance/tests/test_new_plugin.py")
SUITE_SECONDS = 8 * 60

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "venv"
nox.options.envdir = str(ENVIRONMENTS)
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = [
    "lint",
    "layers",
    "types",
    "docs",
    "wheels",
    "kernels",
    "xpu",
    "tests",
    "suite",
]


def in_dev(session: nox.Session, program: str, *args: str) -> None:
    """Run a program of the shared environment."""
    # Small tensors: more threads than one only wait for each other.
    env = {"OMP_NUM_THREADS": "1"}
    session.run(str(ENVIRONMENTS / "dev" / SCRIPTS / program), *args, external=True, env=env)


def run_pytest(session: nox.Session, folder: str, *args: str) -> None:
    """Run one distribution's tests.

    Each has its own run and root: from the repository's root a folder such as ``fla_core`` would
    otherwise be taken for an empty namespace package of the same name.
    """
    selected = args or (f"{folder}/tests",)
    options = [f"--rootdir={folder}", f"--timeout={TEST_TIMEOUT_SECONDS}"]
    if folder in PARALLEL:
        options += ["-n", "auto", "--dist", "loadfile"]
    if not args:
        options += [f"--ignore={path}" for path in VERDICTS if path.startswith(f"{folder}/")]
    in_dev(session, "pytest", *options, *selected, *session.posargs)


def run_every_pytest(session: nox.Session, folders: Iterable[str]) -> None:
    """Run the tests of several distributions; a failure in one does not hide the others."""
    failed = []
    for folder in folders:
        try:
            run_pytest(session, folder)
        except CommandFailed:
            failed.append(folder)
    if failed:
        session.error(f"tests failed in {', '.join(failed)}")


def require(session: nox.Session, path: str) -> str:
    if not (ROOT / path).exists():
        session.error(f"{path} does not exist")
    return path


def environment_key() -> str:
    """Changes whenever the shared environment has to be installed again."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + CONSTRAINTS.read_bytes())
    for folder in DISTRIBUTIONS:
        digest.update((ROOT / folder / "pyproject.toml").read_bytes())
    return digest.hexdigest()


@nox.session(default=False)
def dev(session: nox.Session) -> None:
    """Build the shared environment: every distribution editable, plus the test tools."""
    stamp = Path(session.virtualenv.location) / "installed"
    key = environment_key()
    if stamp.exists() and stamp.read_text() == key:
        session.log("environment is current")
        return
    session.install("-c", str(CONSTRAINTS), *TEST_TOOLS)
    editable = [part for folder in DISTRIBUTIONS for part in ("-e", f"./{folder}")]
    session.install("-c", str(CONSTRAINTS), "--no-build-isolation", *editable)
    stamp.write_text(key)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and formatting."""
    session.install("-c", str(CONSTRAINTS), "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(venv_backend="none", requires=["dev"])
def layers(session: nox.Session) -> None:
    """Imports point downwards, modules stay small; the checkers themselves are tested first."""
    run_pytest(session, "tools")
    in_dev(session, "python", "tools/check_layers.py")


@nox.session(venv_backend="none", requires=["dev"])
def types(session: nox.Session) -> None:
    """Static types, strictly."""
    sources = [f"{folder}/src" for folder in ("fla_core", "fla_triton", *BACKENDS, "conformance")]
    in_dev(session, "mypy", *sources, "tools/check_layers.py", "tools/check_wheels.py")


@nox.session(venv_backend="none", requires=["dev"])
def docs(session: nox.Session) -> None:
    """Generated pages say what the code says; what pages show runs and prints what they say."""
    in_dev(session, "python", require(session, "docs/generate.py"), "--check")
    run_pytest(session, "docs")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every wheel, install all in one command into a clean environment, and use them."""
    example = require(session, "examples/quickstart.py")
    folder = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    session.install("-c", str(CONSTRAINTS), "hatchling")
    build = ("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder))
    session.run("python", "-m", *build, ".", *(f"./{name}" for name in DISTRIBUTIONS))
    session.run("python", "tools/check_wheels.py", str(folder))

    # Not this session's own environment: the build tools in it would hide a missing dependency.
    clean = Path(session.create_tmp()) / "clean"
    session.run("python", "-m", "venv", "--clear", str(clean))
    scripts = clean / SCRIPTS
    built = sorted(str(path) for path in folder.glob("*.whl"))
    pip = (str(scripts / "python"), "-m", "pip")
    session.run(*pip, "install", "--quiet", "-c", str(CONSTRAINTS), *built, external=True)
    session.run(*pip, "check", external=True)
    session.run(str(scripts / "fla-kernels"), "doctor", external=True)
    session.run(str(scripts / "python"), example, external=True)


@nox.session(venv_backend="none", requires=["dev"], default=False)
def core(session: nox.Session) -> None:
    """Tests of the core."""
    run_pytest(session, "fla_core")


def cache_of(session: nox.Session) -> Path:
    """Where Triton keeps what a session compiles."""
    return Path(session.create_tmp()) / "triton"


def install_kernels(session: nox.Session, *toolchain: str, backends: Iterable[str]) -> None:
    """Install what runs or compiles kernels: a toolchain beside the pinned torch.

    Nothing that an earlier run of the session compiled is left.
    """
    shutil.rmtree(cache_of(session), ignore_errors=True)
    folders = ("fla_core", "fla_triton", *backends, "conformance")
    editable = [part for folder in folders for part in ("-e", f"./{folder}")]
    tools = ("editables", "hatchling", "numpy", "pytest", "pytest-timeout", "pytest-xdist")
    session.install("-c", str(CONSTRAINTS), *tools)
    session.install(*toolchain)
    session.install("-c", str(CONSTRAINTS), "--no-build-isolation", *editable)


def compile_kernels(session: nox.Session, *arguments: str, module: str = "compile_only") -> None:
    """Run a driver beside the kernels' tests, with what others of this session have compiled."""
    env = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "fla_triton" / "tests"),
        "TRITON_CACHE_DIR": str(cache_of(session)),
    }
    session.run("python", "-m", module, *arguments, *session.posargs, env=env)


def run_plugin_tests(session: nox.Session, folder: str) -> None:
    """Run one backend's tests where Triton is installed: session tests skips what needs it."""
    options = (f"--rootdir={folder}", f"--timeout={TEST_TIMEOUT_SECONDS}", f"--ignore={NO_TRITON}")
    session.run("pytest", *options, f"{folder}/tests", env={"OMP_NUM_THREADS": "1"})


@nox.session
def kernels(session: nox.Session) -> None:
    """Triton kernels without a GPU: plans linted, numerics in the interpreter, code compiled.

    An environment of its own: with Triton installed, other tests would not see what users without
    it see. One chip of each vendor is compiled for; ``compile_all`` does the others.
    """
    backends = ("fla_backend_cuda", "fla_backend_rocm")
    install_kernels(session, "-c", str(CONSTRAINTS), "triton", backends=backends)
    options = ("--rootdir=fla_triton", f"--timeout={TEST_TIMEOUT_SECONDS}")
    # A test is a process of its own that interprets or compiles: a worker a core, any order.
    parallel = ("-n", "auto", "--dist", "worksteal")
    session.run("pytest", *options, *parallel, "fla_triton/tests", env={"OMP_NUM_THREADS": "1"})
    for folder in backends:
        run_plugin_tests(session, folder)
    compile_kernels(session, *COMPILED_IN_CI)
    hopper = (f"fla_backend_cuda.hopper.{module}" for module in ("delta", "decay"))
    compile_kernels(session, "sm90", "--kernels", *hopper, "--only", *HALVES)


@nox.session(default=False)
def compile_all(session: nox.Session) -> None:
    """Every night: every dtype, feature and size for every chip.

    ``-- --report FOLDER`` keeps what was seen for the table of supported hardware.
    """
    backends = ("fla_backend_cuda", "fla_backend_rocm")
    install_kernels(session, "-c", str(CONSTRAINTS), "triton", backends=backends)
    compile_kernels(session, *COMPILED_AT_NIGHT, "--thorough")


@nox.session(default=False)
def compile_gfx1250(session: nox.Session) -> None:
    """Every night: the chip for which the pinned Triton has no working compiler, every dtype."""
    install_kernels(session, "triton==3.7.1", backends=("fla_backend_rocm",))
    compile_kernels(session, "gfx1250", *DTYPES_AT_NIGHT)


@nox.session(default=False)
def interpreted(session: nox.Session) -> None:
    """Every night: kernels as they are planned for AMD and Intel chips, in Triton's interpreter."""
    install_kernels(session, "-c", str(CONSTRAINTS), "triton", backends=())
    compile_kernels(session, *INTERPRETED, module="interpreter.proof")
    compile_kernels(session, "gfx942", "--control", module="interpreter.proof")


def install_intel(session: nox.Session) -> None:
    """Install Intel's Triton, whose import name is the stock one's, and OpenCL for the CPU."""
    python = session.run(
        "python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])", silent=True
    )
    if str(python).strip() not in XPU_PYTHONS:
        session.skip(f"triton-xpu has wheels for Python {', '.join(XPU_PYTHONS)}")
    opencl = ("pyopencl", "intel-opencl-rt", "intel-cmplr-lib-rt")
    install_kernels(
        session, "-c", str(CONSTRAINTS), "triton-xpu", *opencl, backends=("fla_backend_xpu",)
    )


@nox.session
def xpu(session: nox.Session) -> None:
    """Intel's compiler for one of its GPUs, and what it makes of a contract, run on the CPU."""
    install_intel(session)
    run_plugin_tests(session, "fla_backend_xpu")
    compile_kernels(session, "pvc", "--only", *INTEL_PARTS)
    compile_kernels(session, "--only", "linear_attn", module="compile_only.lowered")
    compile_kernels(session, "--control", "--only", "linear_attn", module="compile_only.lowered")


@nox.session(default=False)
def xpu_all(session: nox.Session) -> None:
    """Every night: every Intel chip and dtype, and every contract's kernels, run on the CPU."""
    install_intel(session)
    compile_kernels(session, "pvc", "dg2", "bmg", *DTYPES_AT_NIGHT)
    compile_kernels(session, module="compile_only.lowered")
    compile_kernels(session, "--control", "--only", "linear_attn", module="compile_only.lowered")


@nox.session(venv_backend="none", requires=["dev"], default=False)
def hostile(session: nox.Session) -> None:
    """Tests of the core against plugins that misbehave."""
    run_pytest(session, "fla_core", require(session, "fla_core/tests/hostile"))


@nox.session(venv_backend="none", requires=["dev"], default=False)
def conformance(session: nox.Session) -> None:
    """Tests of the conformance suite, but for its verdicts on plugins; ``suite`` has those."""
    run_pytest(session, "conformance")


def run_suite(session: nox.Session, budget: str, *verdicts: str) -> None:
    """Prove the reference up to the highest level, by the conformance suite as anybody runs it.

    Args:
        session: what runs.
        budget: how much of the grid.
        verdicts: tests of what the suite says of other plugins, to run beside it.
    """
    named = ("--fla-plugin=reference", "--fla-level=L4", f"--fla-budget={budget}")
    parallel = ("-n", "auto", "--dist", "worksteal")
    options = ("--rootdir=conformance", *verdicts, "--pyargs", "fla_conformance", "-q")
    in_dev(session, "pytest", *options, *parallel, *named, *session.posargs)


def spent() -> float:
    """Seconds of processors that programs run from here have taken so far; 0 on Windows."""
    times = os.times()
    return times.children_user + times.children_system


@nox.session(venv_backend="none", requires=["dev"])
def suite(session: nox.Session) -> None:
    """The conformance suite on the reference, on a seeded part of the grid, and on the samples.

    The samples are right, wrong, partial or hostile, and each must get its verdict. Two processors
    have eight minutes; what they take in all is looked at, since that hardly depends on what else
    a machine does.
    """
    begin, before = time.monotonic(), spent()
    run_suite(session, "ci", *VERDICTS)
    taken, used = time.monotonic() - begin, spent() - before
    session.log(f"{taken:.0f} s, {used:.0f} s of processors; {2 * SUITE_SECONDS} s may be used")
    if used > 2 * SUITE_SECONDS:
        session.error(f"the suite used {used:.0f} s of processors, expected {2 * SUITE_SECONDS}")


@nox.session(venv_backend="none", requires=["dev"], default=False)
def conformance_full(session: nox.Session) -> None:
    """Every night: the whole grid on the reference, and every planted fault."""
    run_suite(session, "full")
    in_dev(session, "fla-conformance", "faults", "--budget", "full")


@nox.session(venv_backend="none", requires=["dev"], default=False)
def backends(session: nox.Session) -> None:
    """Tests of the backends and of the Triton library they share."""
    run_every_pytest(session, ("fla_triton", *BACKENDS))


@nox.session(venv_backend="none", requires=["dev"])
def tests(session: nox.Session) -> None:
    """The tests of the examples and of every distribution; the core's, most of them, come last."""
    run_every_pytest(session, ("examples", *reversed(DISTRIBUTIONS)))


@nox.session(venv_backend="none", requires=["dev"], default=False)
def example(session: nox.Session) -> None:
    """Train the small character model; arguments go to it."""
    in_dev(session, "python", require(session, "examples/char_lm.py"), *session.posargs)
