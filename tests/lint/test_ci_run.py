# SPDX-License-Identifier: Apache-2.0
"""`.ci/run` runs each command in its own clone: plants commands that depend on each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tree_check import ROOT

GIT = (
    "git",
    "-c",
    "user.name=nobody",
    "-c",
    "user.email=nobody@localhost",
    "-c",
    "commit.gpgsign=false",
)


class Project:
    """A repository with this project's `.ci/run` and commands that record that they ran."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.log = folder / "log"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        shutil.copytree(ROOT / ".ci", self.root / ".ci")

    def command(self, name: str, body: str = "") -> None:
        script = self.root / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(
            f'#!/usr/bin/env bash\nset -e\necho "{name} $*" >>"{self.log}"\n{body}\n',
            encoding="utf-8",
        )
        script.chmod(0o755)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        for arguments in (
            ["init", "--quiet"],
            ["add", "."],
            ["commit", "--quiet", "-m", "planted"],
        ):
            subprocess.run([*GIT, *arguments], cwd=self.root, check=True)
        (self.root / "build").mkdir()
        (self.root / "build" / "left_over").touch()
        return subprocess.run(
            [self.root / ".ci" / "run"],
            env={**os.environ, "TMPDIR": str(self.temporary), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def ran(self) -> list[str]:
        return [line.rstrip() for line in self.log.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.command("examples/run")
    project.command("tests/run")
    return project


COMMANDS = ["examples/run", "tests/run --all"]


def test_the_example_comes_first_and_each_is_run(project: Project) -> None:
    done = project.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.ran() == COMMANDS
    assert list(project.temporary.iterdir()) == []


@pytest.mark.parametrize("leaning", ["examples/run", "tests/run"])
def test_one_that_needs_what_the_other_built_fails(project: Project, leaning: str) -> None:
    (other,) = {"examples/run", "tests/run"} - {leaning}
    project.command(other, "mkdir build && touch build/made && touch $HOME/made")
    project.command(leaning, "test -e build/made || test -e $HOME/made")
    done = project.run()
    assert done.returncode == 1, done.stdout + done.stderr
    assert project.ran() == COMMANDS
    (line,) = [command for command in COMMANDS if command.startswith(leaning)]
    assert re.search(rf"^ FAIL +\d+ s  ./{line}$", done.stdout, re.MULTILINE)


def test_nothing_but_what_is_committed_is_there(project: Project) -> None:
    project.command("examples/run", "test ! -e build")
    assert project.run().returncode == 0


def test_the_callers_environment_is_not_seen(project: Project) -> None:
    project.command("examples/run", 'test -z "${MODCACHE_DIR:-}" && test -z "${VIRTUAL_ENV:-}"')
    assert project.run(MODCACHE_DIR="/nowhere", VIRTUAL_ENV="/nowhere").returncode == 0


@pytest.mark.parametrize("before", ["/active/bin:", "/usr/bin:/active/bin:/active/bin:"])
@pytest.mark.parametrize("after", ["", ":/active/bin"])
def test_an_active_environment_is_not_on_the_path(
    project: Project, before: str, after: str
) -> None:
    project.command("examples/run", 'case ":$PATH:" in *:/active/bin:*) exit 1 ;; esac')
    path = before + os.environ["PATH"] + after
    assert project.run(PATH=path, VIRTUAL_ENV="/active").returncode == 0
