"""Probing: once a device, in a thread, with a limit."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fakes import CPU, CUDA, module, plugin
from fla_core.plugins import Probe, hookimpl
from fla_core.plugins.api import Device
from fla_core.plugins.discover import in_memory, reference_record
from fla_core.plugins.load import load
from fla_core.plugins.probe import device_name, probe
from fla_core.plugins.record import PluginRecord, State


def _loaded(**options: Any) -> PluginRecord:
    record = plugin("acme", **options)
    load(record)
    return record


def test_asks_once_a_device_even_from_many_threads() -> None:
    asked = []

    def answer(device: str) -> Probe:
        asked.append(device)
        time.sleep(0.01)
        return Probe(True, arch="sm90")

    record = _loaded(probe=answer)
    threads = [threading.Thread(target=probe, args=(record, CUDA)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == ["cuda:0"]
    probe(record, Device("cuda", 1))
    assert asked == ["cuda:0", "cuda:1"]
    assert record.state is State.PROBED


def test_refusal_is_of_one_device() -> None:
    record = _loaded(probe=lambda device: Probe(device == "cuda:1", "too old a driver"))
    assert not probe(record, CUDA).ok
    assert record.state is State.UNAVAILABLE
    assert record.summary() == "unavailable: cuda:0: too old a driver"
    assert probe(record, Device("cuda", 1)).ok
    assert record.state is State.PROBED


def test_a_probe_that_hangs_is_given_up() -> None:
    released = threading.Event()
    record = _loaded(probe=lambda device: released.wait(20))
    started = time.monotonic()
    assert not probe(record, CUDA, timeout=0.05).ok
    assert time.monotonic() - started < 5
    assert record.summary() == "broken: probe: no answer for cuda:0 within 0.05 s"
    released.set()


@pytest.mark.parametrize("error", [ValueError("no ptx"), SystemExit("no ptx")])
def test_a_probe_that_raises(error: BaseException) -> None:
    def answer(device: str) -> Probe:
        raise error

    record = _loaded(probe=answer)
    assert not probe(record, CUDA).ok
    assert record.summary() == f"broken: probe: cuda:0: {type(error).__name__}: no ptx"
    assert record.failure is not None
    assert record.failure.cause is error


def test_an_answer_of_another_type() -> None:
    record = _loaded(probe=lambda device: "yes")
    assert not probe(record, CUDA).ok
    assert "fla_probe() must return a Probe, got 'yes'" in record.summary()


def test_a_probe_that_waits_for_itself_is_told() -> None:
    records: list[PluginRecord] = []
    record = _loaded(probe=lambda device: probe(records[0], CUDA))
    records.append(record)
    started = time.monotonic()
    assert not probe(record, CUDA, timeout=20).ok
    assert time.monotonic() - started < 5
    assert "the probe of acme makes a call that asks for acme" in record.summary()


def test_a_plugin_without_the_hook_counts_as_willing() -> None:
    made = module()
    del made.fla_probe
    record = in_memory("acme", made)
    load(record)
    assert probe(record, CUDA) == Probe(True, "the plugin has no fla_probe() hook")


def test_the_reference_is_not_asked() -> None:
    record = reference_record()
    assert probe(record, CUDA).ok


def test_names_of_devices() -> None:
    assert device_name(CPU) == "cpu"
    assert device_name(Device("cuda")) == "cuda:0"
    assert device_name(Device("xpu", 2)) == "xpu:2"


def test_hooks_receive_only_what_they_ask_for() -> None:
    made = module()

    @hookimpl
    def fla_probe() -> Probe:
        return Probe(True, arch="any")

    made.fla_probe = fla_probe
    record = in_memory("acme", made)
    load(record)
    assert probe(record, CUDA).arch == "any"
