# SPDX-License-Identifier: Apache-2.0
"""Globals that an installed package makes anew in each process do not count in a fingerprint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = {
    "session.py": """
import os, time
from uuid import uuid4

SESSION = uuid4().hex
STARTED = time.time()
NAMES = [os.getpid()]
KIND = os.environ.get("KIND", "plain")
SCALE = 2.0
CALLS = {alias: lambda: 1.0 for alias in ("one", "two")}
ALIASES = {alias: function for function in CALLS.values() for alias in set("abcdefgh")}
""",
    "encoder.py": """
import torch
from .session import ALIASES, SESSION, STARTED, KIND as WHICH, SCALE


def where():
    return f"{SESSION}/{STARTED}"


def factor():
    return ALIASES["a"]() * SCALE if WHICH == "plain" else 1.0


class Encoder(torch.nn.Module):
    def forward(self, x):
        return x * factor() + len(where()) * 0
""",
    "__init__.py": "",
}
ASK = """
import sys, modcache
sys.path.insert(0, sys.argv[1])
from package import encoder
{change}
print(modcache.fingerprint(encoder.Encoder()))
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    (folder / "package").mkdir(parents=True)
    for name, text in PACKAGE.items():
        (folder / "package" / name).write_text(text)
    return folder


def fingerprint_in_a_new_process(installed: Path, change: str = "", **variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", ASK.format(change=change), str(installed)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        text=True,
        capture_output=True,
        check=True,
    ).stdout


def test_a_session_s_number_does_not_count(installed: Path) -> None:
    first = fingerprint_in_a_new_process(installed)
    assert fingerprint_in_a_new_process(installed) == first


def test_the_order_of_aliases_from_a_set_does_not_count(installed: Path) -> None:
    first = fingerprint_in_a_new_process(installed, PYTHONHASHSEED="1")
    for seed in ("2", "3"):
        assert fingerprint_in_a_new_process(installed, PYTHONHASHSEED=seed) == first
    change = "encoder.ALIASES.update(a=encoder.ALIASES.pop('a'), z=len)"
    assert fingerprint_in_a_new_process(installed, change, PYTHONHASHSEED="1") != first


def test_what_comes_from_the_environment_does_count(installed: Path) -> None:
    first = fingerprint_in_a_new_process(installed)
    assert fingerprint_in_a_new_process(installed, KIND="other") != first


def test_a_constant_that_was_replaced_does_count(installed: Path) -> None:
    first = fingerprint_in_a_new_process(installed)
    assert fingerprint_in_a_new_process(installed, "encoder.SCALE = 3.0") != first
