# SPDX-License-Identifier: Apache-2.0
"""What tests/setup.sh promises the commands that are built on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SETUP = Path(__file__).resolve().parents[1] / "setup.sh"

# Stands for a Python whose pip fails for as many calls as it is told.
_PYTHON = """#!/bin/sh
echo "$@" >>"$CALLS"
[ "$(wc -l <"$CALLS")" -gt "$FAILURES" ]
"""


def _fetch(folder: Path, failures: int) -> tuple[int, list[str]]:
    """The exit status of `fetch_with_pip` and its calls of pip, the pauses left out."""
    python, calls = folder / "python", folder / "calls"
    python.write_text(_PYTHON)
    python.chmod(0o755)
    script = f'source "{_SETUP}"; sleep() {{ :; }}; fetch_with_pip "{python}" install a-package'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "CALLS": str(calls),
            "FAILURES": str(failures),
        },
        capture_output=True,
        text=True,
    )
    return done.returncode, calls.read_text().splitlines()


def test_an_index_that_does_not_answer_at_first_is_asked_again(tmp_path: Path) -> None:
    assert _fetch(tmp_path, failures=2) == (0, ["-m pip install a-package"] * 3)


def test_what_works_is_done_once(tmp_path: Path) -> None:
    assert _fetch(tmp_path, failures=0) == (0, ["-m pip install a-package"])


def test_what_is_not_there_is_given_up(tmp_path: Path) -> None:
    assert _fetch(tmp_path, failures=9) == (1, ["-m pip install a-package"] * 3)


# --- provide_torch, install_python_packages


class Venv:
    """Stands for .venv. Its pip makes a torch of the version it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        (self.site,) = (folder / "venv").glob("lib/python3*/site-packages")

    def add_torch(self, site: Path, version: str, folder: bool = True) -> None:
        if folder:
            (site / "torch").mkdir(parents=True)
        facts = site / f"torch-{version}.dist-info" / "METADATA"
        facts.parent.mkdir(parents=True)
        facts.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")

    def call(self, command: str) -> list[str]:
        """What pip was told."""
        script = f"""
            source "{_SETUP}"
            ROOT={self.folder} VENV={self.folder}/venv PYTHON={self.python}
            fetch_with_pip() {{
              echo "${{@:2}}" >>{self.folder}/calls
              local last=${{@: -1}} facts
              [[ $last == torch==* ]] || return 0
              facts={self.site}/torch-${{last#torch==}}.dist-info
              rm -rf {self.site}/torch*.dist-info && mkdir -p {self.site}/torch "$facts"
              printf 'Name: torch\\nVersion: %s\\n' "${{last#torch==}}" >"$facts/METADATA"
            }}
            {command}
        """
        calls = self.folder / "calls"
        calls.write_text("")
        subprocess.run(["bash", "-euo", "pipefail", "-c", script], check=True, capture_output=True)
        return calls.read_text().splitlines()

    def pinned(self) -> str:
        return (self.folder / "venv" / "constraints.txt").read_text()


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return Venv(tmp_path)


_INSTALLED = ["install --force-reinstall torch==2.13.0"]


def test_without_a_torch_the_first_supported_one_is_installed(venv: Venv) -> None:
    assert venv.call("provide_torch") == _INSTALLED
    assert venv.pinned() == "torch==2.13.0\n"
    assert venv.call("provide_torch") == []


def test_a_torch_that_is_not_supported_is_replaced(venv: Venv) -> None:
    venv.add_torch(venv.site, "2.12.0")
    assert venv.call("provide_torch") == _INSTALLED


@pytest.mark.parametrize("left", ["folder", "version"])
def test_an_interrupted_installation_is_done_again(venv: Venv, left: str) -> None:
    if left == "folder":
        (venv.site / "torch").mkdir()
    else:
        venv.add_torch(venv.site, "2.13.0", folder=False)
    assert venv.call("provide_torch") == _INSTALLED


def test_the_environments_own_torch_stays(venv: Venv) -> None:
    venv.add_torch(venv.site, "2.14.1")
    assert venv.call("provide_torch 2.13.0 /elsewhere") == []
    assert venv.pinned() == "torch==2.14.1\n"


def test_the_torch_of_the_active_environment_is_lent_and_stays(venv: Venv, tmp_path: Path) -> None:
    venv.add_torch(tmp_path / "other", "2.14.0")
    for offer in (f"2.14.0 {tmp_path / 'other'}", ""):
        assert venv.call(f"provide_torch {offer}") == []
        assert venv.pinned() == "torch==2.14.0\n"


def test_a_torch_that_is_not_supported_is_not_lent(venv: Venv, tmp_path: Path) -> None:
    venv.add_torch(tmp_path / "other", "2.12.0")
    assert venv.call(f"provide_torch 2.12.0 {tmp_path / 'other'}") == _INSTALLED


def test_packages_are_installed_once_for_each_change_of_their_list(
    venv: Venv, tmp_path: Path
) -> None:
    (tmp_path / "venv" / "constraints.txt").write_text("torch==2.13.0\n")
    for content, times in (("a==1", 1), ("a==1", 0), ("a==2", 1), ("a==1", 1)):
        (tmp_path / "list.txt").write_text(content)
        assert len(venv.call("install_python_packages list.txt")) == times
