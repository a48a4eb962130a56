# SPDX-License-Identifier: Apache-2.0
"""What this folder's tests run, and where from."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
VALUE = "3.000000 3.000000"  # what the encoder of the fixture `model` makes of ones


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def output_of(*command: str | Path, **environment: str) -> str:
    result = run(*command, **environment)
    assert result.returncode == 0, f"{command}:\n{result.stdout}{result.stderr}"
    return result.stdout


def torch_folder() -> Path:
    """Where torch is installed; importing it would take seconds."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def lines(host: Path, *steps: str | Path, cache: Path, **environment: str) -> list[str]:
    """What the steps printed; nothing was logged, and the process ended well."""
    result = run(host, *steps, MODCACHE_DIR=str(cache), **environment)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()
