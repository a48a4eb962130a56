# SPDX-License-Identifier: Apache-2.0
"""Copies to an accelerator beside its other work.

Work that a thread starts under ``working()`` is in order on the side stream. A thread that uses the
results first waits for the mark that was set after that work, and tells the allocator about every
tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree


class SideStream(Protocol):
    """A stream of work beside the current one of ``device``."""

    device: torch.device

    def follow_current(self) -> None:
        """Makes later work of the side stream wait for the calling thread's stream."""

    def working(self) -> contextlib.AbstractContextManager[None]:
        """Sends the calling thread's work to the side stream."""

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copies a tensor to the device, without the host waiting for that."""

    def mark(self) -> object:
        """Marks the place in the side stream after all work so far."""

    def hand_over(self, mark: Any, tensors: list[torch.Tensor]) -> None:
        """Makes the calling thread's stream wait for ``mark``, and then use ``tensors``."""


class AcceleratorStream:
    """The side stream of a real device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.Stream(device=device)

    def follow_current(self) -> None:
        self._stream.wait_stream(torch.accelerator.current_stream(self.device))

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        with self._stream:
            yield

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self.device:
            return tensor
        is_plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
        if is_plain and not tensor.is_nested and not tensor.is_pinned():
            # Otherwise the host would make the copy, and wait for it.
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def mark(self) -> torch.Event:
        return self._stream.record_event()

    def hand_over(self, mark: Any, tensors: list[torch.Tensor]) -> None:
        current = torch.accelerator.current_stream(self.device)
        current.wait_event(mark)
        for tensor in tensors:
            if tensor.device == self.device:
                tensor.record_stream(current)


def copied(batch: Any, stream: SideStream) -> Any:
    """Copies a batch's tensors to the stream's device, at any depth, and moves other objects."""

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return stream.copied(leaf)
        return leaf.to(stream.device) if _moves_itself(leaf) else leaf

    return pytree.tree_map(moved, batch, is_leaf=_moves_itself)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Finds the tensors of a batch, also inside of objects that move themselves."""
    found: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(value, is_leaf=_moves_itself):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif _moves_itself(leaf):
            parts = leaf if isinstance(leaf, tuple) else vars(leaf).values()
            found += tensors_in(list(parts))
    return found


def _moves_itself(value: Any) -> bool:
    """Whether a value moves its own tensors, like PackedSequence or a tokenizer's BatchEncoding."""
    if isinstance(value, PackedSequence):
        return True
    if isinstance(value, torch.Tensor) or not callable(getattr(value, "to", None)):
        return False
    is_container = isinstance(value, Mapping) or callable(getattr(value, "pin_memory", None))
    return is_container and hasattr(value, "__dict__")
