# SPDX-License-Identifier: Apache-2.0
"""The entry points of Triton's PyTorch backend, called as it calls them: by dlsym, from a library
that was opened with RTLD_NOW | RTLD_LOCAL, with the directory of a model's version."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from installed import VALUE, run

INIT, FINI = "init", ("fini", "triton_pytorch_model_fini")


class Server:
    """A host without settings of its own, and the models that it has."""

    def __init__(self, host: Path, library: Path, models: Path) -> None:
        self.host, self.library, self.models = host, library, models

    def model(self, name: str, settings: object = None) -> Path:
        """Makes the directory of a model's version; `settings`: text, or what JSON can say."""
        folder = self.models / name / "1"
        folder.mkdir(parents=True)
        if settings is not None:
            text = settings if isinstance(settings, str) else json.dumps(settings)
            (folder / "modcache.json").write_text(text, encoding="utf-8")
        return folder

    def run(self, *steps: str | Path, **environment: str) -> tuple[list[str], list[str]]:
        """What the steps printed, and what was logged."""
        home = {"XDG_CACHE_HOME": str(self.models / "cache-home"), **environment}
        result = run(self.host, "open", self.library, *steps, **home)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()[1:], result.stderr.splitlines()

    @property
    def default_dir(self) -> str:
        return str(self.models / "cache-home" / "modcache")


@pytest.fixture
def server(hosts: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    for name in [name for name in os.environ if name.startswith("MODCACHE_")]:
        monkeypatch.delenv(name)
    return Server(hosts / "plain_host", library, tmp_path)


def test_a_model_is_cached_where_its_settings_say(server: Server, model: Path) -> None:
    options = {"dir": "cache", "min_run_us": 8, "strict": True, "verify_share": 0.01}
    folder = server.model("a", options)
    steps = (INIT, folder, "load", model, "run", "key", *FINI, "close", "run", "key")
    stats = ("stat", "hits_memory", "setting", "dir", "setting", "min_run_us", "setting", "strict")
    printed, logged = server.run(*steps, *stats, "setting", "verify_share")
    assert printed[:6] == ["handle", "loaded", VALUE, "unloaded", "closed", VALUE]
    assert printed[6:] == ["1", str(folder / "cache"), "8", "true", "0.01"]
    assert logged == []
    assert any((folder / "cache").rglob("*.seg"))

    printed, _ = server.run(INIT, folder, "load", model, "run", "key", "stat", "hits_disk")
    assert printed[-1] == "1"


def test_a_model_without_settings_changes_nothing(server: Server) -> None:
    printed, logged = server.run(INIT, server.model("a"), "setting", "dir", *FINI)
    assert printed == ["handle", server.default_dir, "unloaded"]
    assert logged == []


def test_the_name_that_the_backend_s_review_gave_to_fini(server: Server) -> None:
    release = ("fini", "triton_pytorch_model_release")
    printed, logged = server.run(INIT, server.model("a", {"min_run_us": 3}), *release)
    assert (printed, logged) == (["handle", "unloaded"], [])


def test_an_absolute_directory_and_a_size(server: Server, tmp_path: Path) -> None:
    folder = server.model("a", {"dir": str(tmp_path / "shared"), "memory": "1MiB", "disk": 2000000})
    steps = ("setting", "dir", "setting", "memory", "setting", "disk")
    printed, _ = server.run(INIT, folder, *steps)
    assert printed[1:] == [str(tmp_path / "shared"), "1048576", "2000000"]


BAD_SETTINGS = {
    "an unknown option": ({"memry": "1GB"}, ["unknown option 'memry'", "valid options are: dir,"]),
    "a bad value": (
        {"match": "shapes"},
        ["option 'match' is 'shapes'", "input, none"],
    ),
    "a bad number": ({"min_run_us": 1.5}, ["option 'min_run_us' is '1.5'", "an integer"]),
    "a list": ({"dir": ["a"]}, ["option 'dir' is a JSON array", "must be a string, a number"]),
    "null": ({"mode": None}, ["option 'mode' is a JSON null", "true or false"]),
    "no object": ([1], ["holds a JSON array", "valid is an object of options"]),
    "no JSON": ('{"dir": ', ["parse error at line 1", "valid is an object of options"]),
    "no text": ("", ["parse error", "valid is an object of options"]),
    "too much text": (" " * (1 << 20) + "{}", ["longer than 1 MiB"]),
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_settings_are_one_message_and_change_nothing(
    server: Server, model: Path, name: str
) -> None:
    settings, expected = BAD_SETTINGS[name]
    if isinstance(settings, dict):
        settings = {"codec": "zstd", **settings}  # all of a file is applied, or nothing
    folder = server.model("a", settings)
    steps = ("setting", "dir", "setting", "codec", "load", model, "run", "key", *FINI)
    printed, logged = server.run(INIT, folder, *steps)
    assert printed == ["handle", server.default_dir, "none", "loaded", VALUE, "unloaded"]
    (message,) = logged
    assert message.startswith(f"modcache: error: '{folder / 'modcache.json'}': ")
    for part in expected:
        assert part in message


def test_settings_that_cannot_be_read(server: Server) -> None:
    folder = server.model("a")
    (folder / "modcache.json").mkdir()
    pipe = server.model("b")
    os.mkfifo(pipe / "modcache.json")
    printed, logged = server.run(INIT, folder, INIT, pipe, *FINI, *FINI)
    assert printed == ["handle", "handle", "unloaded", "unloaded"]
    assert [message.split(": ")[-1] for message in logged] == [
        "not a regular file. Nothing of this file is applied"
    ] * 2


def test_who_runs_the_server_overrules_a_model(server: Server) -> None:
    folder = server.model("a", {"mode": "on", "min_run_us": 9, "policy": "keep"})
    before = ("configure", "policy", "lru")
    shown = ("mode", "setting", "min_run_us", "setting", "policy")
    printed, logged = server.run(*before, INIT, folder, *shown, MODCACHE_MODE="off")
    assert printed == ["configured", "handle", "off", "9", "lru"]
    assert logged == []
    printed, _ = server.run("set-mode", "read", INIT, folder, "mode")
    assert printed == ["set", "handle", "read"]
    printed, _ = server.run(INIT, folder, "configure", "min_run_us", "4", *shown)
    assert printed == ["handle", "configured", "on", "4", "keep"]
    _, logged = server.run(INIT, folder, MODCACHE_LOG="info", MODCACHE_MODE="off")
    (message,) = [message for message in logged if "gives way" in message]
    assert f"option 'mode' of '{folder / 'modcache.json'}'" in message


def test_of_two_models_that_differ_the_first_decides(server: Server) -> None:
    first = server.model("a", {"dir": "cache", "min_run_us": 9, "codec": "zstd"})
    second = server.model("b", {"dir": "cache", "min_run_us": 9, "match": "none"})
    shown = ("setting", "dir", "setting", "match")
    printed, logged = server.run(INIT, first, INIT, second, *shown)
    assert printed == ["handle", "handle", str(first / "cache"), "none"]
    (message,) = logged
    assert message.startswith("modcache: warning: option 'dir' is ")
    for part in (str(second / "cache"), str(second / "modcache.json"), f"model in '{first}'"):
        assert part in message


def test_a_model_that_is_loaded_anew_has_its_new_settings(server: Server) -> None:
    old = server.model("a", {"min_run_us": 9})
    new = server.model("b", {"min_run_us": 4})
    shown = ("setting", "min_run_us")
    printed, logged = server.run(INIT, old, *FINI, *shown, INIT, new, *shown)
    assert printed == ["handle", "unloaded", "9", "handle", "4"]
    assert logged == []


def test_a_model_that_is_loaded_twice_differs_from_nobody(server: Server) -> None:
    folder = server.model("a", {"dir": "cache", "memory": "2GB"})
    printed, logged = server.run(INIT, folder, INIT, folder, *FINI, *FINI)
    assert printed == ["handle", "handle", "unloaded", "unloaded"]
    assert logged == []


def test_of_a_second_copy_the_first_has_the_settings(server: Server, tmp_path: Path) -> None:
    copy = shutil.copy(server.library, tmp_path / "libcopy.so")
    folder = server.model("a", {"min_run_us": 9})
    printed, logged = server.run("open", copy, INIT, folder, "setting", "min_run_us", *FINI)
    assert printed == ["opened", "handle", "9", "unloaded"]
    (message,) = logged
    assert "another copy" in message
