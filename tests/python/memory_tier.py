# SPDX-License-Identifier: Apache-2.0
"""Waiting for what is brought into memory in the background."""

from __future__ import annotations

import modcache


def wait_until_held(entries: int) -> None:
    """Polls: the library tells nobody when its thread is done."""
    for _ in range(10_000_000):
        if modcache.stats()["entries_memory"] >= entries:
            return
    raise AssertionError(modcache.stats())
