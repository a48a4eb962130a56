# SPDX-License-Identifier: Apache-2.0
"""explain() names the installed package that is another now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import sys, torch, modcache
sys.path.insert(0, sys.argv[1])
import named
named.SCALE = float(sys.argv[3])
modcache.configure(dir=sys.argv[2])
module, x = named.Net().eval(), torch.ones(2)
print("; ".join(modcache.explain(module, x, "key").changed))
modcache.lookup_or_run(module, x, "key")
modcache.flush()
"""
SOURCE = """
import torch
SCALE = 1.0
class Part:
    def of(self, x): return x * SCALE
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()
    def forward(self, x): return self.part.of(x) * {}
"""


def install(folder: Path, version: str, number: int) -> None:
    (folder / "named").mkdir(parents=True, exist_ok=True)
    (folder / "named" / "__init__.py").write_text(SOURCE.format(number))
    for old in folder.glob("*.dist-info"):
        (old / "RECORD").unlink()
        old.rmdir()
    info = folder / f"Named-{version}.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"named/__init__.py,sha256=none,1\n{info.name}/RECORD,,\n")


def ask(tmp_path: Path, scale: float = 1.0) -> str:
    """What a new process says has changed; it stores its own result then."""
    arguments = [str(tmp_path / "site-packages"), str(tmp_path / "cache"), str(scale)]
    command = [sys.executable, "-c", ASK, *arguments]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("version", "said"), [("5.2", "named 5.1 -> 5.2"), ("5.1", "named 5.1 (its files changed)")]
)
def test_it_names_the_package_and_its_versions(tmp_path: Path, version: str, said: str) -> None:
    folder = tmp_path / "site-packages"
    install(folder, "5.1", 2)
    ask(tmp_path)
    install(folder, version, 3)
    assert ask(tmp_path) == said


def test_it_blames_no_attribute_for_what_a_package_holds(tmp_path: Path) -> None:
    install(tmp_path / "site-packages", "5.1", 2)
    ask(tmp_path)
    assert ask(tmp_path, 2.0) == "values or functions that installed packages hold"
