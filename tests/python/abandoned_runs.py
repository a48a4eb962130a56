# SPDX-License-Identifier: Apache-2.0
"""A thread that leads the run of some keys, and abandons it when another call waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from modcache._call import ready_call


@contextmanager
def abandoned_run(call: Callable[[], Any]) -> Iterator[list[None]]:
    """Another thread runs ``call``, and abandons it after the first run of this thread.

    A call in the block with these and other keys runs the other keys first, and then runs again.
    Yields a list that has an item for each run of this thread.
    """
    begun, may_end = threading.Event(), threading.Event()
    runs: list[None] = []
    tagged = ready_call.tagged

    def tagged_or_interrupted(*args: Any, **options: Any) -> Any:
        if threading.current_thread() is not thread:
            runs.append(None)
            may_end.set()
            return tagged(*args, **options)
        begun.set()
        may_end.wait(60)
        raise KeyboardInterrupt

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            call()

    thread = threading.Thread(target=interrupted, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ready_call, "tagged", tagged_or_interrupted)
        thread.start()
        try:
            assert begun.wait(60), "the other thread leads no run"
            yield runs
        finally:
            may_end.set()
            thread.join(60)
    assert not thread.is_alive()
