# SPDX-License-Identifier: Apache-2.0
"""Processes that end with the one that started them, even where that one is killed."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

# The kernel kills the program when its parent dies. A parent that died before the kernel was told
# is noticed by the shell, which then starts nothing.
_BOUND = ("setpriv", "--pdeathsig", "KILL", "sh", "-c", 'test "$PPID" = "$0" && exec "$@"')


@functools.cache
def _starter(process_id: int) -> ThreadPoolExecutor:
    """The kernel takes the thread that started a program for its parent. A test may start one from
    a thread that ends before the program should, so one thread, which lasts as long as the
    process, starts them all. It is looked up by process since a fork does not copy threads.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"starter-{process_id}")


def start_bound(
    command: Sequence[str | os.PathLike[str]],
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Its process id is the program's own. A Ctrl-C goes to the tests alone, which then end it."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*_BOUND, str(os.getpid()), *command],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    return _starter(os.getpid()).submit(start).result()


def end(process: subprocess.Popen[bytes] | None) -> None:
    """Kills it and waits for it, so no zombie stays."""
    if process is None:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
