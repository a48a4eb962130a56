# SPDX-License-Identifier: Apache-2.0
"""Batches made ahead by a thread, and handed out in order."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from modcache._feed.side_stream import SideStream, tensors_in
from modcache._library.mode import mode_of_context
from modcache._library.tasks import current_owner

_T = TypeVar("_T")


_this_thread = threading.local()  # .works_for: the BatchesAhead that owns the thread


@contextlib.contextmanager
def caller_paused() -> Iterator[None]:
    """Pauses the caller of this thread, for example to use the process's random generators.

    In a thread that makes batches ahead, it waits until the calling thread waits for a batch, and
    keeps it waiting. In other threads it does nothing.
    """
    ahead: BatchesAhead[Any] | None = getattr(_this_thread, "works_for", None)
    if ahead is None or not ahead.is_of_this_process():  # a worker that this thread has forked
        yield
    else:
        with ahead.pausing_caller():
            yield


@dataclass
class _Made(Generic[_T]):
    """A batch, or the exception that was raised in its place, such as StopIteration."""

    batch: _T | None = None
    error: BaseException | None = None
    mark: object = None


class BatchesAhead(Generic[_T]):
    """Calls ``make`` until it raises, in a thread that starts when it is first needed.

    Two threads never call ``make`` at once: make_here() is for before the thread starts, or instead
    of it. One thread uses this object; any thread may call close(). In a forked child there are no
    more batches.

    Args:
        make: returns the next batch, and raises StopIteration after the last.
        depth: how many batches may be ready or being made.
        stream: the stream for the work of ``make``; None: there is no accelerator.
    """

    def __init__(self, make: Callable[[], _T], depth: int, stream: SideStream | None) -> None:
        self._make: Callable[[], _T] | None = make
        self._depth = depth
        self._stream = stream
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._ready: deque[_Made[_T]] = deque()
        self._is_closed = False
        self._is_caller_waiting = False
        self._outer: BatchesAhead[Any] | None = None  # it owns the caller's thread
        self._pauses = 0  # pauses that the thread has begun; they may be nested
        self._thread: threading.Thread | None = None
        if stream is not None:
            stream.follow_current()

    def make_here(self) -> _T:
        """Makes the next batch in the calling thread."""
        if self._is_closed or self._make is None:
            raise StopIteration
        return self._handed_out(self._one(self._make))

    def take(self) -> _T:
        """Waits for the next batch, which the thread makes."""
        if self._is_closed or not self.is_of_this_process():
            raise StopIteration
        if self._thread is None:
            self._start()
        with self._changed:
            self._wait_for_one()
            if self._is_closed:
                raise StopIteration
            made = self._ready.popleft()
            self._changed.notify_all()
        return self._handed_out(made)

    def _wait_for_one(self) -> None:
        self._is_caller_waiting = True
        self._changed.notify_all()
        try:
            while (not self._ready or self._pauses) and not self._is_closed:
                self._changed.wait()
        finally:
            self._is_caller_waiting = False

    def is_of_this_process(self) -> bool:
        return self._process == os.getpid()

    @contextlib.contextmanager
    def pausing_caller(self) -> Iterator[None]:
        """Keeps the thread's caller, and the callers of that one, in take() or close()."""
        with self._changed:
            while not (self._is_caller_waiting or self._is_closed):
                self._changed.wait()
            self._pauses += 1
        try:
            if self._outer is None:
                yield
            else:
                with self._outer.pausing_caller():
                    yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread after the batch that it is making, and releases the loader."""
        if not self.is_of_this_process():
            return  # the parent has the thread, which may even hold the lock
        with self._changed:
            self._is_closed = True
            self._ready.clear()
            self._changed.notify_all()
        thread = self._thread
        # The thread itself may come here when it collects garbage.
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._make = None

    def _start(self) -> None:
        self._outer = getattr(_this_thread, "works_for", None)
        kinds = ("cpu",) if self._stream is None else ("cpu", self._stream.device.type)
        state = _CallerState(kinds)
        self._thread = threading.Thread(
            target=self._run, args=(state,), name="modcache-prefetcher", daemon=True
        )
        self._thread.start()

    def _run(self, state: _CallerState) -> None:
        try:
            state.run(self._work)
        except BaseException as error:  # torch refused the caller's state, and the caller waits
            with self._changed:
                self._ready.append(_Made(error=error))
                self._changed.notify_all()

    def _work(self) -> None:
        _this_thread.works_for = self
        while True:
            with self._changed:
                while len(self._ready) >= self._depth and not self._is_closed:
                    self._changed.wait()
                if self._is_closed or self._make is None:
                    return
                make = self._make
            made = self._one(make)
            with self._changed:
                if self._is_closed:
                    return
                self._ready.append(made)
                self._changed.notify_all()
            if made.error is not None:
                return
            del make, made  # while waiting for room, it holds no batch

    def _one(self, make: Callable[[], _T]) -> _Made[_T]:
        try:
            if self._stream is None:
                return _Made(make())
            with self._stream.working():
                batch = make()
                return _Made(batch, mark=self._stream.mark())
        except BaseException as error:
            return _Made(error=error)

    def _handed_out(self, made: _Made[_T]) -> _T:
        if made.error is not None:
            error, made.error = made.error, None
            try:
                raise error
            finally:
                del error  # the traceback holds this frame
        if self._stream is not None:
            tensors: list[torch.Tensor] = tensors_in(made.batch)
            self._stream.hand_over(made.mark, tensors)
        batch: Any = made.batch
        return batch  # type: ignore[no-any-return]


class _CallerState:
    """The calling thread's grad mode, inference mode, autocast, cache, mode and context variables.

    Args:
        device_types: devices whose autocast state is carried, such as ``("cpu", "cuda")``.
    """

    def __init__(self, device_types: tuple[str, ...]) -> None:
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind))
            for kind in device_types
            if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        ]
        self._keeps_casts = torch.is_autocast_cache_enabled()
        self._mode = _thread_mode()
        self._cache = current_owner()
        self._context = contextvars.copy_context()

    def run(self, function: Callable[[], None]) -> None:
        """Calls ``function`` in this thread with the other one's state. It may be called once."""
        self._context.run(self._run, function)

    def _run(self, function: Callable[[], None]) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for kind, dtype in self._autocast:
                autocast: Any = torch.autocast(kind, dtype=dtype, cache_enabled=self._keeps_casts)
                stack.enter_context(autocast)
            if self._cache is not None:
                stack.enter_context(self._cache)
            torch.ops.cache._leave_mode(self._mode)
            function()


def _thread_mode() -> int:
    """Returns the number of the calling thread's own mode, without that of the process."""
    before = int(torch.ops.cache._enter_mode(mode_of_context()))
    mode = int(torch.ops.cache._enter_mode("on"))
    torch.ops.cache._leave_mode(before)
    return mode
