"""``fla-kernels doctor``, always in a process of its own: that is how it survives what it finds."""

from __future__ import annotations

from typing import Any

import pytest
from command_line import Finished, Site, card, kernels, leftover


def plugin(report: Any, name: str) -> Any:
    return next(p for p in report["plugins"] if p["name"] == name)


def problems(report: Any, subject: str) -> list[Any]:
    return [p for p in report["problems"] if p["subject"] == subject]


@pytest.fixture(autouse=True)
def stubbed(site: Site) -> None:
    """Most of what doctor says does not depend on torch, which takes seconds to load."""
    site.stub_torch()


def test_healthy_machine(site: Site) -> None:
    (site.folder / "torch.py").unlink()
    done = site.run("doctor", "--json")
    report = done.json
    assert done.code == 0
    assert report["ok"] is True
    assert list(report) == [
        "ok",
        "versions",
        "devices",
        "settings",
        "variables",
        "plugins",
        "problems",
    ]
    assert report["devices"][0]["device"] == "cpu"
    assert plugin(report, "reference")["state"] == "probed"
    versions = {row["name"]: row for row in report["versions"]}
    assert versions["torch"]["version"][0].isdigit()
    assert "torch" in versions["torch"]["note"]
    assert {"python", "triton", "numpy"} <= set(versions)


@pytest.fixture
def crowd(site: Site) -> Site:
    """Plugins that misbehave in every way, and one that does not."""
    site.plant("aaa", card("aaa"))
    site.plant("fails", "raise ImportError('libdevice.so.9 is missing')")
    site.plant("kills", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    site.plant("leaves", "import os; os._exit(7)")
    site.plant(
        "probes",
        card("probes") + "@hookimpl\ndef fla_probe(device):\n    import os; os.abort()\n",
    )
    site.plant("needs", card("needs", ("no-such-thing>=3",)))
    site.plant("reports", card("reports") + "@hookimpl\ndef fla_doctor(): return {'driver': 12}\n")
    site.plant("raises", card("raises") + "@hookimpl\ndef fla_doctor(): 1 / 0\n")
    site.plant("talks", "print('hello from import')\n" + card("talks"))
    return site


def test_every_kind_of_trouble_is_a_row(crowd: Site) -> None:
    done = crowd.run("doctor", "--json")
    report = done.json
    assert done.code == 1
    assert report["ok"] is False
    states = {p["name"]: p["state"] for p in report["plugins"]}
    assert states == {
        "reference": "probed",
        "aaa": "probed",
        "fails": "broken",
        "kills": "broken",
        "leaves": "broken",
        "probes": "broken",
        "needs": "unavailable",
        "reports": "probed",
        "raises": "probed",
        "talks": "probed",
    }
    assert "libdevice.so.9 is missing" in plugin(report, "fails")["detail"]
    assert "died of SIGSEGV during load" in plugin(report, "kills")["detail"]
    assert "ended with status 7 during load" in plugin(report, "leaves")["detail"]
    assert "died of SIGABRT during probe cpu" in plugin(report, "probes")["detail"]
    assert plugin(report, "reports")["doctor"] == {"driver": "12"}
    assert "ZeroDivisionError" in plugin(report, "raises")["doctor_error"]
    (need,) = plugin(report, "needs")["requirements"]
    assert need["met"] is False
    (missing,) = problems(report, "plugin needs")
    assert missing["severity"] == "warning"
    assert missing["next"] == "pip install 'no-such-thing>=3'"
    (broken,) = problems(report, "plugin fails")
    assert "python -c 'import planted_fails'" in broken["next"]
    assert "FLA_PLUGINS=-fails" in broken["next"]
    assert "install fla-planted-fails again" in broken["next"]


def plant_ours(site: Site, name: str) -> None:
    """A plugin under the name of a backend of this project, without its Triton."""
    site.plant(name, card(name, ("torch", "triton>=3.4"), ("cuda",)) + kernels())
    info = next(site.folder.glob("*.dist-info")) / "METADATA"
    info.write_text(info.read_text().replace(f"fla-planted-{name}", f"fla-backend-{name}"))


def test_only_what_is_missing_is_to_be_installed(site: Site) -> None:
    plant_ours(site, "cuda")
    (found,) = problems(site.run("doctor", "--json").json, "plugin cuda")
    assert found["text"] == "needs triton>=3.4"
    assert found["next"].endswith("; then pip install 'triton>=3.4'")


def test_a_missing_toolchain(site: Site) -> None:
    """Never a stock triton for a vendor's device; a mere note where that device is not."""
    plant_ours(site, "rocm")
    done = site.run("doctor", "--json")
    (found,) = problems(done.json, "plugin rocm")
    assert found["severity"] == "note"
    assert found["next"].startswith("nothing, unless there is a device of type cuda; then install")
    assert "torch's build for AMD GPUs" in found["next"]
    _, need = plugin(done.json, "rocm")["requirements"]
    assert need == {"text": "triton>=3.4", "met": False, "problem": "not installed"}
    explained = site.run("explain", "kda", "--device", "cuda", "--json").json
    assert explained["install"] == [
        "install torch's build for AMD GPUs, which brings its own triton  # for rocm"
    ]


def test_a_trace_that_cannot_be_written(site: Site) -> None:
    missing = site.folder / "no" / "such"
    done = site.run("doctor", "--json", FLA_TRACE=f"calls:{missing}/trace.jsonl")
    assert (done.code, done.json["ok"]) == (1, False)
    (found,) = problems(done.json, "FLA_TRACE")
    assert found["severity"] == "error"
    assert "cannot write to" in found["text"]
    assert found["next"] == "unset FLA_TRACE, or correct it"


def test_text_says_the_same(site: Site) -> None:
    site.plant("kills", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    site.plant("needs", card("needs", ("no-such-thing>=3",)))
    done = site.run("doctor", COLUMNS="100")
    assert done.code == 1
    for text in ("Plugin kills  broken", "died of SIGSEGV", "next  pip install 'no-such-thing>=3'"):
        assert text in done.out
    assert "\x1b" not in done.out


def test_excluded_plugins_are_not_loaded(site: Site) -> None:
    site.plant("kills", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    done = site.run("doctor", "--json", FLA_PLUGINS="-kills")
    assert done.code == 0
    assert plugin(done.json, "kills")["state"] == "excluded"


def test_shadowed_copy(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    older = Site(tmp_path_factory.mktemp("older"))
    older.plant("twice", card("twice"), version="1.0")
    newer = Site(site.folder, older.folder)
    newer.plant("twice", card("twice"), version="2.0")
    done = newer.run("doctor", "--json")
    (found,) = problems(done.json, "plugin twice")
    assert "version 1.0" in found["text"]
    assert "pip uninstall fla-planted-twice" in found["next"]
    assert done.code == 0


def test_two_plugins_of_one_name(site: Site) -> None:
    site.plant("one", card("same"))
    site.plant("two", card("same"))
    for name in ("one", "two"):
        entry = next(site.folder.glob(f"fla_planted_{name}-*")) / "entry_points.txt"
        entry.write_text(f"[fla_core.backends]\nsame = planted_{name}\n")
    done = site.run("doctor", "--json")
    assert done.code == 1
    second = [p for p in done.json["plugins"] if p["name"] == "same"][1]
    assert second["state"] == "broken"
    assert "taken by fla-planted-one" in second["detail"]
    assert any("pip uninstall fla-planted-two" in p["next"] for p in done.json["problems"])


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"FLA_BACKEND": "cdua"}, "no backend 'cdua' is installed"),
        ({"FLA_BACKEND": "auto,,x"}, "a name is missing"),
        ({"FLA_TRACE": "loud"}, "must be one of off, decisions, calls"),
        ({"FLA_BACKENDS": "cuda"}, "FLA_BACKENDS is not a variable of fla-kernels"),
        ({"FLA_PLUGINS": "referense"}, "no plugin 'referense' is installed"),
    ],
)
def test_settings_that_cannot_be_understood(site: Site, environ: dict[str, str], text: str) -> None:
    done = site.run("doctor", "--json", **environ)
    assert done.code == 1
    (name,) = environ
    (found,) = problems(done.json, name)
    assert found["severity"] == "error"
    assert text in found["text"]
    assert found["next"]


def test_settings_in_force_and_foreign_variables(site: Site) -> None:
    environ = {"FLA_DISABLE_BACKEND_DISPATCH": "1", "FLA_TILELANG": "1", "FLA_WHATEVER": "x"}
    report = site.run("doctor", "--json", **environ).json
    settings = {row["name"]: row for row in report["settings"]}
    assert settings["FLA_BACKEND"]["value"] == "reference"
    assert settings["FLA_BACKEND"]["origin"] == "FLA_DISABLE_BACKEND_DISPATCH=1"
    assert settings["FLA_TRACE"] == {"name": "FLA_TRACE", "value": "off", "origin": "default"}
    notes = {row["name"]: row["note"] for row in report["variables"]}
    assert notes == {
        "FLA_TILELANG": "of another library, left alone",
        "FLA_WHATEVER": "unknown, left alone",
    }


def test_validity_rows(site: Site) -> None:
    """Of rows that speak of the same the first is the one that this machine goes by."""
    rows = """
@hookimpl
def fla_probe(device):
    return Probe(True, arch="x86", versions={"triton": "3.6.0"})

@hookimpl
def fla_validity():
    yield Validity("rows:kda#*", "backward", "x86", "", "denied", "wrong gradients")
    yield Validity("rows:*#fast", "*", "*", "triton<3.6", "denied", "too old")
    yield Validity("rows:*", "*", "x86", "triton>=3.6,<3.7", "ok", "passed")
    yield Validity("rows:gla#*", "*", "x86", "triton", "unverified", "seen once")
    yield Validity("rows:*", "*", "gfx9*", "triton==3.6.*", "unverified", "seen twice")
    yield Validity("rows:*", "*", "*", "triton", "unverified", "never run")
"""
    site.plant("rows", card("rows") + rows)
    validity = plugin(site.run("doctor", "--json").json, "rows")["validity"]
    assert [row["applies"] for row in validity] == [True, False, True, False, False, False]
    lines = [
        line.strip().split("  ", 1) for line in site.run("doctor", COLUMNS="80").out.split("\n")
    ]
    assert [line[1].strip() for line in lines if line[0] == "unverified"] == [
        "gla on x86: seen once",
        "on gfx9* with triton==3.6.*: seen twice",
        "everything else: never run",
    ]
    assert [line[1].strip() for line in lines if line[0] == "denied"] == [
        "kda backward on x86 (here): wrong gradients",
        "*#fast with triton<3.6: too old",
    ]
    assert ["ok", "on x86 with triton>=3.6,<3.7 (here): passed"] in [
        [word.strip() for word in line] for line in lines
    ]


def test_devices(site: Site) -> None:
    site.stub_torch(
        """
        __version__ = "9.9+cu999"
        class version: cuda, hip, xpu = "99.9", None, None
        class kind: type = "cuda"
        class accelerator:
            current_accelerator = staticmethod(lambda check_available=False: kind)
            device_count = staticmethod(lambda: 2)
        class cuda:
            get_device_name = staticmethod(lambda index: f"Card {index}")
            get_device_capability = staticmethod(lambda index: (9, index))
        def get_device_module(name): return cuda
        """
    )
    report = site.run("doctor", "--json").json
    assert [tuple(row.values()) for row in report["devices"][1:]] == [
        ("cuda:0", "Card 0", "sm90"),
        ("cuda:1", "Card 1", "sm91"),
    ]
    versions = {row["name"]: row for row in report["versions"]}
    assert versions["torch"]["version"] == "9.9+cu999"
    assert versions["torch"]["note"].startswith("cuda 99.9; from torch")
    assert list(next(p for p in report["plugins"] if p["name"] == "reference")["probes"]) == [
        "cpu",
        "cuda:0",
        "cuda:1",
    ]


def test_a_driver_that_fails_is_a_warning(site: Site) -> None:
    site.stub_torch(
        """
        __version__ = "9.9"
        class version: cuda = hip = xpu = None
        class accelerator:
            @staticmethod
            def current_accelerator(check_available=False): raise RuntimeError("driver too old")
        """
    )
    done = site.run("doctor", "--json")
    assert done.code == 0
    (found,) = problems(done.json, "devices")
    assert found["severity"] == "warning"
    assert "driver too old" in found["text"]


def test_two_owners_of_triton(site: Site) -> None:
    for name in ("triton", "triton-ascend"):
        info = site.folder / f"{name.replace('-', '_')}-3.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.2\n")
        (info / "top_level.txt").write_text("triton\n")
    done = site.run("doctor", "--json")
    assert done.code == 0
    (found,) = problems(done.json, "triton")
    assert "overwrite each other's files" in found["text"]
    assert "pip uninstall triton triton-ascend" in found["next"]


@pytest.mark.parametrize("package", ["foreign", "triton", "numpy"])
def test_a_leftover_without_metadata(site: Site, package: str) -> None:
    info = leftover(site.folder, package)
    site.plant("needs", card("needs", ("triton>=3.4",)))
    done = site.run("doctor", "--json")
    assert done.code == 0, done.err
    (found,) = problems(done.json, "installed packages")
    assert found["severity"] == "warning"
    assert found["text"].startswith(f"{info} cannot be read: ")
    assert found["next"] == "delete it, or install again what it belongs to"
    (missing,) = problems(done.json, "plugin needs")
    assert missing["text"] == "needs triton>=3.4"


def test_torch_that_cannot_be_imported(site: Site) -> None:
    (site.folder / "torch.py").write_text("raise OSError('libc10.so: undefined symbol')")
    done = site.run("doctor", "--json")
    assert done.code == 1
    (found,) = problems(done.json, "torch")
    assert "libc10.so: undefined symbol" in found["text"]


def test_torch_that_crashes(site: Site) -> None:
    (site.folder / "torch.py").write_text("import os; os.abort()")
    done: Finished = site.run("doctor", "--json")
    assert done.code == 1
    (found,) = problems(done.json, "torch")
    assert "died of SIGABRT during torch" in found["text"]


def test_what_is_installed_without_its_device_is_said_to_be_unused(site: Site) -> None:
    site.plant("idle", card("idle", targets=("npu", "quark")))
    text = site.run("doctor").out
    said = "probe  not asked, and unused: there is no device of type npu or quark here"
    assert " ".join(said.split()) in " ".join(text.split())
    site.plant("busy", card("busy"))
    text = site.run("doctor").out
    assert text.count("not asked, and unused") == 1
