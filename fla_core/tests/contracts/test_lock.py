"""The lock notices what it is there for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS, lock


def _changed(name: str, **changes: object) -> dict[str, Contract]:
    return {**CONTRACTS, name: replace(CONTRACTS[name], **changes)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "lock.json"
    assert lock.main(["--write"], path=file) == 0
    return file


def test_contracts_agree_with_their_lock() -> None:
    assert lock.check() == []


def test_every_contract_is_locked() -> None:
    assert set(lock.read()) == set(CONTRACTS)


def test_a_change_of_meaning_needs_a_new_revision(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = _changed("kda", flags=())
    expected = "kda: its meaning changed, its revision is still 1; raise it to 2"
    assert lock.check(planted, path) == [expected]
    before = path.read_text()
    assert lock.main(["--write"], planted, path) == 1
    assert expected in capsys.readouterr().err
    assert path.read_text() == before


def test_a_raised_revision_may_be_written(path: Path) -> None:
    planted = _changed("kda", flags=(), revision=2)
    assert lock.check(planted, path) == [
        "kda: not locked yet; run python -m fla_core.contracts.lock --write"
    ]
    assert lock.main([], planted, path) == 1
    assert lock.main(["--write"], planted, path) == 0
    assert lock.main([], planted, path) == 0


def test_prose_is_free(path: Path) -> None:
    assert lock.check(_changed("kda", equation="as before", source="elsewhere"), path) == []


def test_a_revision_does_not_go_back_and_a_contract_does_not_vanish(path: Path) -> None:
    lock.main(["--write"], _changed("gla", revision=3), path)
    assert lock.check(_changed("gla", revision=2), path) == ["gla: revision went back from 3 to 2"]
    rest = {name: contract for name, contract in CONTRACTS.items() if name != "gla"}
    assert lock.check(rest, path) == ["gla: the contract is gone; plugins still name it"]


def test_unknown_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert lock.main(["--wirte"]) == 2
    assert "unknown argument '--wirte'; there is only --write" in capsys.readouterr().err
