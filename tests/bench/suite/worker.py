# SPDX-License-Identifier: Apache-2.0
"""The process of one round: forked from one that has torch imported, with nothing else in it.

It can be started by itself too, for a profiler: python -m suite.worker NAME FOLDER MATCH
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from suite.measurement import Place

LIMIT_S = 900
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["numpy", "torch"])


class RoundFailedError(Exception):
    """A round ended without figures; the text says why."""


def prepare(name: str, place: Place) -> None:
    from suite import catalogue

    catalogue.named(name).prepare(place)


def measure(name: str, place: Place) -> dict[str, float]:
    from suite import catalogue

    return dict(catalogue.named(name).measure(place))


def threads_of(name: str) -> int:
    from suite import catalogue

    return catalogue.named(name).threads


def run(function: Callable[[str, Place], Any], name: str, place: Place) -> Any:
    """What `function` returns in a process of its own."""
    here, there = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_entry, args=(there, function, name, place))
    process.start()
    there.close()
    try:
        if not here.poll(LIMIT_S):
            raise RoundFailedError(f"{name}: no answer within {LIMIT_S} s")
        outcome, answer = here.recv()
    except EOFError:
        process.join()
        raise RoundFailedError(f"{name}: the process died, {process.exitcode}") from None
    finally:
        if process.is_alive() and not here.closed:
            process.join(5)
        if process.is_alive():
            process.kill()
        process.join()
    if outcome == "failed":
        raise RoundFailedError(f"{name}: {answer}")
    return answer


def _entry(
    answer_to: Connection, function: Callable[[str, Place], Any], name: str, place: Place
) -> None:
    import torch

    torch.set_num_threads(threads_of(name))
    # Some rivals talk; standard output is for the table.
    os.dup2(2, 1)
    try:
        answer_to.send(("done", function(name, place)))
    except Exception as error:
        traceback.print_exc()
        # The traceback is above; the last line of a TorchScript error is what went wrong.
        lines = str(error).strip().splitlines() or [""]
        answer_to.send(("failed", f"{type(error).__name__}: {lines[-1]}"))
    finally:
        answer_to.close()


if __name__ == "__main__":
    import torch

    from suite import stores

    stores.hide_rivals()
    torch.set_num_threads(threads_of(sys.argv[1]))
    found = measure(
        sys.argv[1], Place(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[2]), quick=True)
    )
    for subject, us in found.items():
        print(f"{us:12.2f} us  {subject}")
