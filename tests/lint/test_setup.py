# SPDX-License-Identifier: Apache-2.0
"""What tests/setup.sh promises the commands that are built on it."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
