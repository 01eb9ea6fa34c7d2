"""The suite under pytest: ``pytest --pyargs fla_conformance --fla-plugin NAME``.

Each check is one item with the case's id. An expected failure is an xfail, a failure that did not
happen fails. pytest loads this module in every environment the suite is installed in, so it
imports nothing heavy until a plugin is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fla_conformance.session import Prepared
    from fla_conformance.suite import Task

_PREPARED: pytest.StashKey[Prepared] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the command ``fla-conformance run``."""
    group = parser.getgroup("fla-conformance", "conformance of fla-kernels plugins")
    group.addoption("--fla-plugin", metavar="NAME", help="plugin to examine")
    group.addoption("--fla-op", metavar="GLOB", default="*", help="contracts, names or ids")
    group.addoption("--fla-device", metavar="DEVICE", default="", help="where, as in cuda:0")
    group.addoption("--fla-level", metavar="LEVEL", default="L3", help="the highest, L0 to L4")
    group.addoption("--fla-budget", metavar="BUDGET", default="ci", help="ci, full or a number")


def pytest_collection(session: pytest.Session) -> None:
    """List the checks where an error is one line, not a failure to collect a file."""
    if session.config.getoption("--fla-plugin"):
        _prepared(session.config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each check of the plugin that was named."""
    if "fla_item" not in metafunc.fixturenames:
        return
    prepared = _prepared(metafunc.config)
    items: list[Any] = [*prepared.early, *prepared.tasks]
    ids = [f"{item.implementation}/{item.level}/{item.id}" for item in items]
    metafunc.parametrize("fla_item", items, ids=ids)


@pytest.fixture(scope="session")
def fla_judge(request: pytest.FixtureRequest) -> Any:
    """Carries out one check and returns its result, expectations applied."""
    from fla_conformance.result import Result
    from fla_conformance.suite import execute

    expectations = _prepared(request.config).settings.expectations

    def judge(item: Result | Task) -> Result:
        return item if isinstance(item, Result) else execute(item, expectations)

    return judge


@pytest.fixture(scope="session")
def fla_problems(request: pytest.FixtureRequest) -> list[str]:
    """Expectations that have expired or select nothing."""
    return _prepared(request.config).problems


def _prepared(config: pytest.Config) -> Prepared:
    """List the checks, once."""
    if _PREPARED not in config.stash:
        config.stash[_PREPARED] = _prepare(config)
    return config.stash[_PREPARED]


def _prepare(config: pytest.Config) -> Prepared:
    name = config.getoption("--fla-plugin")
    if not name:
        pytest.exit("which plugin? Give --fla-plugin NAME", pytest.ExitCode.USAGE_ERROR)
    from fla_conformance.session import Request, prepare
    from fla_core.errors import FlaError

    budget: str = config.getoption("--fla-budget")
    try:
        request = Request(
            name,
            op=config.getoption("--fla-op"),
            device=config.getoption("--fla-device"),
            level=config.getoption("--fla-level"),
            budget=int(budget) if budget.isdigit() else budget,
        )
        return prepare(request)
    except (FlaError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error
