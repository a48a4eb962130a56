# SPDX-License-Identifier: Apache-2.0
"""Copies to an accelerator beside its other work.

The rule: what a thread makes under ``working()`` is in order on the side stream; whoever uses it
waits for the mark that was set after it, and says so to the allocator for every tensor.
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
        """What the side stream does from now on comes after the calling thread's stream."""

    def working(self) -> contextlib.AbstractContextManager[None]:
        """The calling thread's work goes to the side stream."""

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device; a copy that the host does not wait for."""

    def mark(self) -> object:
        """A place in the side stream: after all that was begun so far."""

    def hand_over(self, mark: Any, tensors: list[torch.Tensor]) -> None:
        """The calling thread's stream waits for ``mark``, and uses ``tensors`` from then on."""


class AcceleratorStream:
    """The real one, of one device."""

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
            # Else the copy would be made by the host, which waits for it.
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
    """The batch with its tensors on the stream's device: any nesting, and what moves itself."""
    return pytree.tree_map(lambda leaf: _copied_leaf(leaf, stream), batch, is_leaf=_moves_itself)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a batch, those inside of objects that move themselves included."""
    found: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(value, is_leaf=_moves_itself):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif _moves_itself(leaf):
            parts = leaf if isinstance(leaf, tuple) else vars(leaf).values()
            found += tensors_in(list(parts))
    return found


def _moves_itself(value: Any) -> bool:
    """A PackedSequence, a tokenizer's BatchEncoding: only it knows which tensors are to move."""
    if isinstance(value, PackedSequence):
        return True
    if isinstance(value, torch.Tensor) or not callable(getattr(value, "to", None)):
        return False
    is_container = isinstance(value, Mapping) or callable(getattr(value, "pin_memory", None))
    return is_container and hasattr(value, "__dict__")


def _copied_leaf(leaf: Any, stream: SideStream) -> Any:
    if isinstance(leaf, torch.Tensor):
        return stream.copied(leaf)
    return leaf.to(stream.device) if _moves_itself(leaf) else leaf
