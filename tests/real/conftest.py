# SPDX-License-Identifier: Apache-2.0
"""The fixtures of tests/python, here for models that others made."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_TESTS / "python"), str(_TESTS.parent / "examples" / "python_script")]

# Both folders' conftest.py have the same name, so that an import finds this file.
_spec = importlib.util.spec_from_file_location("python_conftest", _TESTS / "python" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_python_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_python_conftest)

cache_dir = _python_conftest.cache_dir
counted = _python_conftest.counted
processes = _python_conftest.processes
reopen = _python_conftest.reopen
