# SPDX-License-Identifier: Apache-2.0
"""What a directory has on record of cached functions: the names that people gave them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import modcache
import pytest
import torch
from processes import PROGRAM

SCRIPT = """
import sys
import modcache, torch

@modcache.cached(key="name")
def embed(x, name):
    return x * 2

class Tower:
    @modcache.cached(key="name")
    def encode(self, x, name):
        return x * 3

if __name__ == "__main__":
    modcache.configure(dir=sys.argv[-1])
    embed(torch.ones(2), "a")
    Tower().encode(torch.ones(2), "a")
    modcache.flush()
"""


def names_in(directory: Path) -> list[str]:
    listed = [PROGRAM, "ls", directory, "--scopes", "--json"]
    done = subprocess.run(listed, capture_output=True, check=True)
    return sorted(scope["class"] for scope in json.loads(done.stdout)["scopes"])


@pytest.mark.parametrize("way", ["as a script", "as a module"])
def test_functions_of_a_script_are_named_after_its_file(way: str, tmp_path: Path) -> None:
    package = tmp_path / "jobs"
    package.mkdir()
    (package / "train.py").write_text(SCRIPT)
    line = [package / "train.py"] if way == "as a script" else ["-m", "jobs.train"]
    environment = {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}"}
    directory = tmp_path / "cache"
    subprocess.run([sys.executable, *line, directory], check=True, env=environment)
    module = "train" if way == "as a script" else "jobs.train"
    assert names_in(directory) == [f"{module}.Tower.encode", f"{module}.embed"]


@modcache.cached(key="name")
def doubled(x: torch.Tensor, name: str) -> torch.Tensor:
    return x * 2


def test_functions_of_a_module_have_its_name(cache_dir: Path) -> None:
    doubled(torch.ones(2), "a")
    modcache.flush()
    assert names_in(cache_dir) == [f"{__name__}.doubled"]
