# SPDX-License-Identifier: Apache-2.0
"""Batches loaded, encoded and copied to the accelerator ahead of use."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch

from modcache._feed.batches_ahead import BatchesAhead
from modcache._feed.side_stream import AcceleratorStream, SideStream, copied
from modcache._library.global_random import GlobalRandom

_T = TypeVar("_T")


class Prefetcher(Generic[_T]):
    """Iterates a loader with the next batches ready on the device, in the loader's order.

    A thread loads up to ``depth`` batches ahead, calls ``encode`` on each and copies the result to
    the device on a stream of its own, while the caller trains on the batch before. The batches are
    those of a plain loop over the loader, ``encode`` and ``.to(device)``. Without an accelerator
    the same code runs on the CPU, and copies nothing.

    ``encode`` can take features from the cache ahead of use::

        def encode(batch):
            images, labels, ids = batch
            return modcache.lookup_or_run(encoder, images, ids), labels

        for features, labels in modcache.Prefetcher(loader, encode=encode):
            ...

    >>> import modcache, torch
    >>> loader = [torch.ones(2), torch.zeros(2)]
    >>> [batch.sum().item() for batch in modcache.Prefetcher(loader, device="cpu")]
    [2.0, 0.0]

    The thread has the grad mode, inference mode, autocast and cache mode (``modcache.mode``) of the
    thread that began the iteration. An exception of the loader or of ``encode`` is raised in place
    of its batch, with its traceback. Leaving the loop early ends the thread after the batch that it
    is loading; so do ``close()``, leaving ``with``, and the end of the process.

    Random numbers: if the loader draws from the process's generators (random transforms without
    worker processes), only the calling thread uses it, so that a seed gives the same batches as
    without a Prefetcher. The second batch shows whether it draws. ``DataLoader`` workers have
    generators of their own.

    Args:
        loader: a ``DataLoader``, or any iterable. Each iteration of this object iterates it once,
            on the thread, and never on two threads at once.
        device: the device for tensors. None: the current accelerator, or the CPU if there is none.
            Containers may be nested. Objects that move themselves to a device (a mapping with
            ``to``, or an object with ``to`` and ``pin_memory``) do so; other values stay the same.
        depth: how many batches are ready or being made while the caller uses one.
        encode: a function of a batch, called on the thread. Its result replaces the batch. It
            should draw no random numbers from the process's generators.

    Raises:
        TypeError: a loader that is not iterable, or arguments of other types.
        ValueError: a depth below 1, or a device that this machine does not have.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        device: str | torch.device | None = None,
        depth: int = 2,
        encode: Callable[[Any], _T] | None = None,
    ) -> None:
        if not isinstance(loader, Iterable):
            raise TypeError(
                f"Prefetcher: loader must be a DataLoader or another iterable, but got "
                f"{type(loader).__name__}."
            )
        if type(depth) is not int:
            raise TypeError(f"Prefetcher: depth must be an int, but got {type(depth).__name__}.")
        if depth < 1:
            raise ValueError(f"Prefetcher: depth is {depth}, but at least 1 batch is made ahead.")
        if encode is not None and not callable(encode):
            raise TypeError(
                f"Prefetcher: encode must be a function of one batch, but got "
                f"{type(encode).__name__}."
            )
        self._loader = loader
        self._device = _checked_device(device)
        self._depth = depth
        self._encode = encode
        # Whether the loader draws from generators of the process; None: not known yet.
        self._draws: bool | None = False if getattr(loader, "num_workers", 0) else None
        self._iterators: weakref.WeakSet[_Batches[_T]] = weakref.WeakSet()

    @property
    def device(self) -> torch.device:
        """The device of the batches."""
        return self._device

    def __len__(self) -> int:
        """Returns the loader's length. Raises TypeError if it has none."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[_T]:
        if getattr(self._loader, "persistent_workers", False):
            self.close()  # its iterators share their workers, and must not be used together
        batches: _Batches[_T] = _Batches(self)
        self._iterators.add(batches)
        return batches

    def close(self) -> None:
        """Ends all iterations and their threads. The object may be iterated again."""
        for batches in list(self._iterators):
            batches.close()

    def __enter__(self) -> Prefetcher[_T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(self) -> SideStream | None:
        return None if self._device.type == "cpu" else AcceleratorStream(self._device)


class _Batches(Iterator[_T]):
    """One iteration."""

    def __init__(self, prefetcher: Prefetcher[_T]) -> None:
        self._prefetcher = prefetcher
        # A DataLoader draws the seed of its workers when its iterator is made, so it is made here.
        source = iter(prefetcher._loader)
        encode, stream = prefetcher._encode, prefetcher._stream()

        def made() -> Any:
            batch = next(source)
            if encode is not None:
                try:
                    batch = encode(batch)
                except StopIteration as error:
                    # It would end the loop as if there were no more batches.
                    raise RuntimeError("Prefetcher: encode raised StopIteration") from error
            return batch if stream is None else copied(batch, stream)

        self._ahead: BatchesAhead[_T] = BatchesAhead(made, prefetcher._depth, stream)
        self._taken = 0
        # Unlike __del__, a finalizer also runs when the process ends.
        self._finalizer = weakref.finalize(self, self._ahead.close)

    def __iter__(self) -> _Batches[_T]:
        return self

    def __next__(self) -> _T:
        try:
            return self._next()
        except BaseException:
            self.close()
            raise

    def _next(self) -> _T:
        self._taken += 1
        # A sampler draws its seed with the first batch, so the calling thread makes that.
        if self._taken == 1 or self._prefetcher._draws:
            return self._ahead.make_here()
        if self._prefetcher._draws is None:
            before = GlobalRandom()
            batch = self._ahead.make_here()
            self._prefetcher._draws = before.was_drawn_from()
            return batch
        return self._ahead.take()

    def close(self) -> None:
        """Ends the thread; ``next`` raises StopIteration afterwards."""
        self._finalizer()


def _checked_device(device: object) -> torch.device:
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    if device is None:
        device = accelerator if accelerator is not None else "cpu"
    if not isinstance(device, (str, torch.device)):
        raise TypeError(
            f"Prefetcher: device must be a str, a torch.device or None, but got "
            f"{type(device).__name__}."
        )
    valid = '"cpu"' if accelerator is None else f'"cpu", "{accelerator.type}"'
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(
            f"Prefetcher: device is {device!r}, but must be one of {valid}, or None."
        ) from None
    if found.type == "cpu":
        return torch.device("cpu")
    count = torch.accelerator.device_count() if accelerator is not None else 0
    is_there = accelerator is not None and found.type == accelerator.type
    if not is_there or (found.index or 0) >= count:
        raise ValueError(
            f"Prefetcher: device is {device!r}, which this machine does not have; valid are "
            f"{valid}, or None for whatever there is."
        )
    if found.index is None:
        return torch.device(found.type, torch.accelerator.current_device_index())
    return found
