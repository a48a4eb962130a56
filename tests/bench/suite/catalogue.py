# SPDX-License-Identifier: Apache-2.0
"""Every measurement there is. A new file of measurements gets its line here."""

from __future__ import annotations

from suite import (
    batches,
    disk_hits,
    epochs,
    first_epochs,
    memory_hits,
    misses,
    off,
    readers,
    remote_hits,
    scripted_hits,
)
from suite.measurement import Measurement

FAMILIES = (
    memory_hits, scripted_hits, disk_hits, remote_hits, misses, batches, readers, epochs,
    first_epochs, off,
)  # fmt: skip


def all_measurements() -> list[Measurement]:
    return [one for family in FAMILIES for one in family.measurements()]


def named(name: str) -> Measurement:
    return next(one for one in all_measurements() if one.name == name)
