"""The command ``fla-kernels``: what is installed, what would run and why, and whether it is right.

Every command takes ``--json`` and then prints one JSON document alone on stdout, whose keys are
documented in the module of the command. Exit codes: 0 all is well, 1 something is broken, wrong or
missing, 2 the question itself cannot be understood. ``--version`` alone prints the core's version.
"""

from __future__ import annotations

import logging
import warnings

import typer

import fla_core
from fla_core.cli import backends, bench, doctor, explain, new_plugin, selfcheck, tune, warmup
from fla_core.cli._group import Group
from fla_core.cli.version import add_version

app = typer.Typer(
    name="fla-kernels",
    cls=Group,
    help="Linear attention kernels: what is installed, what would run, and is it right?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    doctor.doctor,
    backends.backends,
    explain.explain,
    selfcheck.selfcheck,
    warmup.warmup,
    bench.bench,
    tune.tune,
    new_plugin.new_plugin,
):
    # Its whole first sentence in the list of commands, where click would cut it short.
    app.command(short_help=(command.__doc__ or "").partition("\n\n")[0])(command)
add_version(app, lambda: fla_core.__version__)


def main() -> None:
    """Entry point of the installed script."""
    # Torch says so at its import without numpy, which no command needs.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")
    # Its benchmark timer loads its builder of extensions, which says so where there is a toolkit
    # without a GPU.
    builder = logging.getLogger("torch.utils.cpp_extension")
    builder.addFilter(lambda record: "No CUDA runtime is found" not in str(record.msg))
    app()
