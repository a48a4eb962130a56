# SPDX-License-Identifier: Apache-2.0
"""The slowest tests, marked ``thorough``, run where MODCACHE_THOROUGH is "on"."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the slowest tests out, as ./tests/run does without --thorough."""
    if os.environ.get("MODCACHE_THOROUGH") == "on":
        return
    slow = [item for item in items if item.get_closest_marker("thorough")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
