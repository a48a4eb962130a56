# SPDX-License-Identifier: Apache-2.0
"""One line at the end of a process whose cache was asked often and seldom had an answer."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
from multiprocessing import process

import torch

from modcache._library import log
from modcache._library.mode import mode

_FEWEST_LOOK_UPS = 100
_REFUSED = {
    "bypassed_grad": "their results require grad",
    "bypassed_impure": "their results are no function of the module's state and input",
    "bypassed_type": "they hold a value that cannot be stored",
    "bypassed_rows": "their results do not consist of rows, or padding changes them",
    "bypassed_identity": "their module cannot be identified",
}


def summary(counts: dict[str, int], first_warning: str = "") -> tuple[int, str] | None:
    """Returns a level of ``logging`` and the line; None: there is nothing to say.

    It is a warning if most of what did not hit can never hit, else ("info") a first run.
    """
    hits = sum(counts.get(name, 0) for name in ("hits_memory", "hits_disk", "hits_remote"))
    refused = {name: counts.get(name, 0) for name in _REFUSED}
    conflicts = counts.get("key_conflicts", 0)
    look_ups = hits + counts.get("misses", 0) + sum(refused.values())
    if look_ups < _FEWEST_LOOK_UPS or 2 * hits >= look_ups:
        return None
    text = f"only {hits:,} of {look_ups:,} look-ups hit"
    lost = sum(refused.values()) + conflicts
    if 2 * lost <= look_ups - hits:
        return logging.INFO, f"{text}: the others ran, and {counts.get('stored', 0):,} were stored"
    causes = {f"{number:,} calls or rows were not kept, since {_REFUSED[name]}": number
              for name, number in refused.items()}  # fmt: skip
    causes[f"{conflicts:,} keys came with another input than before"] = conflicts
    text += f": {max(causes, key=lambda cause: causes[cause])}"
    return logging.WARNING, f"{text}. The first warning was: {first_warning or 'not logged'}"


def log_at_exit() -> None:
    """Has this process log its summary when it ends, if it is no worker and no later rank."""
    atexit.register(_log_summary, os.getpid())


def _log_summary(pid: int) -> None:
    is_worker = os.getpid() != pid or process.parent_process() is not None
    if is_worker or os.environ.get("RANK", "0") != "0":
        return
    with contextlib.suppress(Exception):
        log.deliver()
        with mode("off"):  # counting the entries of the directory might open it
            counts = dict(torch.ops.cache.stats())
        found = summary(counts, log.first_warning())
        if found is not None:
            log.write(*found)
