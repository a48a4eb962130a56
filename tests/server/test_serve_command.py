# SPDX-License-Identifier: Apache-2.0
"""The options of the server and of ./examples/serve."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from running import ROOT, SERVER, RunningServer


def outcome(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


def test_help() -> None:
    assert "--connections" in outcome(SERVER, "--help").stdout
    helped = outcome(ROOT / "examples" / "serve", "--help")
    assert helped.returncode == 0
    for option in ("--model", "--pack", "--dir", "--build-only"):
        assert option in helped.stdout


MISUSE = {
    "no model": ([], "--model is required"),
    "a model that is not there": (["--model", "gone.pt"], "gone.pt"),
    "no option": (["--modle", "x"], "--modle"),
    "a port": (["--port", "70000"], "70000 not in range"),
    "a shape": (["--shape", "1xtwo"], "'two' is not a size; valid are numbers"),
    "a dtype": (["--dtype", "float8"], "float8 not in {float32,float64,int64}"),
    "a setting": (["--set", "memory"], "valid is NAME=VALUE"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_bad_option(make_model: Callable[..., Path], name: str) -> None:
    options, reason = MISUSE[name]
    model = [] if "model" in name else ["--model", make_model("scripted")]
    said = outcome(SERVER, *model, *options)
    assert said.returncode == 2
    assert reason in said.stdout + said.stderr


def test_file_that_is_not_a_model(tmp_path: Path, make_model: Callable[..., Path]) -> None:
    for name in ("text.pt", "text.pt2"):
        path = tmp_path / name
        path.write_text("no model")
        said = outcome(SERVER, "--model", path, "--dir", tmp_path / "cache")
        assert said.returncode == 1
        assert f"cannot load '{path}'" in said.stderr
    bad = outcome(SERVER, "--model", make_model("scripted"), "--set", "memry=1GB")
    assert bad.returncode == 1
    assert "unknown option 'memry'" in bad.stderr
    assert "\n#" not in bad.stderr  # no traceback


def test_two_servers_do_not_share_a_port(start: Callable[..., RunningServer]) -> None:
    server = start()
    with pytest.raises(AssertionError, match=r"cannot listen on 127\.0\.0\.1:.*in use"):
        start("--port", str(server.port))


def test_serve_with_a_missing_file() -> None:
    said = outcome(ROOT / "examples" / "serve", "--pack", "gone.modcache")
    assert said.returncode == 1
    assert "there is no file 'gone.modcache'" in said.stderr


SETUP = """
ROOT={root} BUILD={root}/build PYTHON=true
give_up() {{ echo "$*"; exit 1; }}
have_command() {{ false; }}
say() {{ :; }}
set_up() {{ :; }}
enter_venv() {{ :; }}
install_package() {{ :; }}
cmake() {{ :; }}
modcache() {{ echo "modcache $*"; }}
"""
GIVEN = {
    "nothing": ([], {"--model": "{root}/examples/output/server/model.pt", "--shape": "?x32"}),
    "apart": (["--dir", "d", "--model", "m.pt"], {"--dir": "d", "--model": "m.pt"}),
    "joined": (["--dir=d", "--model=m.pt"], {"--dir": "d", "--model": "m.pt"}),
    "twice": (["--dir=a", "--dir", "b"], {"--dir": "b", "--shape": "?x32"}),
    "a shape": (["--shape", "1x32"], {"--shape": "1x32"}),
    "a shape, joined": (["--shape=1x32"], {"--shape": "1x32"}),
    "a shape of a model": (["--model=m.pt", "--shape=1x3"], {"--model": "m.pt", "--shape": "1x3"}),
    "others": (["--port", "9", "--host=::"], {"--port": "9", "--shape": "?x32"}),
    "a pack": (["--pack=m.pt", "--model", "m.pt"], {"modcache": "unpack", "--model": "m.pt"}),
}


@pytest.mark.parametrize("name", GIVEN)
def test_serve_passes_each_option_once(tmp_path: Path, name: str) -> None:
    """Runs the script with a setup that does nothing and a server that prints its arguments."""
    given, wanted = GIVEN[name]
    for folder in ("examples", "tests", "build/server"):
        (tmp_path / folder).mkdir(parents=True)
    script = tmp_path / "examples" / "serve"
    script.write_text((ROOT / "examples" / "serve").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "tests" / "setup.sh").write_text(SETUP.format(root=tmp_path), encoding="utf-8")
    server = tmp_path / "build" / "server" / "modcache_server"
    server.write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\n", encoding="utf-8")
    server.chmod(0o755)
    (tmp_path / "m.pt").touch()
    said = subprocess.run(
        ["bash", script, *given], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr
    words = said.stdout.replace("modcache unpack", "modcache\nunpack").splitlines()
    for option, value in wanted.items():
        assert words.count(option) == 1, words
        got = words[words.index(option) + 1]
        assert got.startswith(value.format(root=tmp_path)), words
    assert words.count("--dir") == words.count("--model") == 1
    assert words.count("--shape") == ("--shape" in wanted)
