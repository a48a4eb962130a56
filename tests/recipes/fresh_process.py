# SPDX-License-Identifier: Apache-2.0
"""Runs a recipe in an interpreter of its own, as the next start of a program does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_CODE = """
import importlib, json, sys
sys.path.insert(0, {folder!r})
import torchvision_operators
torchvision_operators.declare_missing()
import modcache, recipe, torch
torch.set_num_threads(1)
given = importlib.import_module("given_" + {name!r}.replace("-", "_")).given(**{options!r})
recipe.run({name!r}, **given)
print(json.dumps(dict(modcache.stats())))
"""


def stats_of(name: str, **options: object) -> dict[str, int]:
    """Runs a recipe with ``given(**options)`` in this folder, and returns its counters."""
    folder = str(Path(__file__).parent)
    code = _CODE.format(folder=folder, name=name, options=options)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))
