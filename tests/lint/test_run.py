# SPDX-License-Identifier: Apache-2.0
"""Stages of `./tests/run`: each is documented, and each folder of tests belongs to one."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest
from tree_check import ROOT

RUN = ROOT / "tests" / "run"
SCRIPT = RUN.read_text(encoding="utf-8")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(RUN), *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def stages() -> list[str]:
    """All stages, as the refusal of an unknown one lists them."""
    refused = run("--only", "nothing")
    assert refused.returncode == 1
    (names,) = re.findall(r"--only needs one of: (.*); got 'nothing'", refused.stderr)
    return str(names).split()


def test_help_lists_each_stage_once() -> None:
    listed = re.findall(r"^  ([a-z-]+) +[^ ]", run("--help").stdout, re.MULTILINE)
    assert sorted(name for name in listed if name in stages()) == sorted(stages())


@pytest.mark.parametrize("stage", stages())
def test_each_stage_has_commands(stage: str) -> None:
    assert re.search(rf"^  ! wants (.* )?{stage}( .*)? \|\|", SCRIPT, re.MULTILINE)


def test_each_folder_of_tests_belongs_to_a_stage() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in settings["tool"]["pytest"]["ini_options"]["testpaths"]:
        assert re.search(rf"run_pytest .*{folder}\b", SCRIPT), folder


@pytest.mark.parametrize("option", ["--quick", "python"])
def test_unknown_options_are_refused(option: str) -> None:
    refused = run(option)
    assert refused.returncode == 1
    assert f"unknown option '{option}'" in refused.stderr
