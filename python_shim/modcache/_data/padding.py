# SPDX-License-Identifier: Apache-2.0
"""Samples that their dataset pads to a fixed size, stored without the padding.

Only what can be put back bit by bit is cut off: slices at an end of a dimension that are all the
same, of which one is kept. A mask or a length says where to look, and is never relied on.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from modcache._call.tagged import UnknownClassError

# The name stands for a class that no process has: a version that does not know it makes the sample.
_NAME = "modcache:trimmed"
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by bytes of an element; else int64
_Cut = tuple[tuple[int, ...], tuple[tuple[int, int, int], ...]]
_NOTHING: _Cut = ((), ())


class Span(NamedTuple):
    """The part of a padded dimension that is true; ``size`` is None where nobody says it."""

    start: int
    end: int
    size: int | None


class SamplePadding(NamedTuple):
    """Which item of a sample says what is padding: the name or place of a mask, or of a length."""

    item: str | int
    is_mask: bool

    def trimmed(self, value: Any, sample: Any) -> Any:
        """Returns the tagged value of a sample without its padding.

        Raises:
            TypeError: the sample has no such item, or one that is no mask or length.
        """
        spans = [self._span(item) for item in self._items(sample) if item is not None]
        cuts: dict[_Cut, list[int]] = {}
        leaves = _Leaves()

        def short(leaf: Any) -> Any:
            cut = _best_cut(leaf, spans)
            if cut[1]:
                cuts.setdefault(cut, []).append(leaves.count)
            return _without(leaf, cut)

        tree = leaves.changed(value, short)
        if not cuts:
            return value
        return ("o", _NAME, json.dumps(list(cuts.items()), separators=(",", ":")), (tree,))

    def _items(self, sample: Any) -> list[Any]:
        """Returns the item of the sample, or of each of its parts: a pair may have two masks."""
        parts = sample.values() if isinstance(sample, Mapping) else sample
        inside = parts if isinstance(self.item, str) and not isinstance(sample, str) else ()
        try:
            holders = [sample, *inside]
        except TypeError:  # it has no parts
            holders = [sample]
        found = [value for holder in holders for value in self._item_of(holder)]
        if not found:
            name = "mask" if self.is_mask else "lengths"
            has = f"the items {list(sample)}" if isinstance(sample, Mapping) else "no such item"
            raise TypeError(
                f"{name}={self.item!r}: the sample is a {type(sample).__name__} with {has}. Give "
                "the name of an item of a dict or named tuple, or the place of one of a tuple."
            )
        return found

    def _item_of(self, holder: Any) -> Iterator[Any]:
        if isinstance(holder, Mapping):
            if self.item in holder:
                yield holder[self.item]
        elif isinstance(holder, (tuple, list)):
            if isinstance(self.item, str):
                if self.item in getattr(holder, "_fields", ()):
                    yield getattr(holder, self.item)
            elif self.item < len(holder):
                yield holder[self.item]

    def _span(self, item: Any) -> Span:
        try:
            return _span_of_mask(item) if self.is_mask else Span(0, _length(item), None)
        except (TypeError, ValueError, RuntimeError):
            name, valid = (
                ("mask", "a tensor, array or list of numbers, not 0 where the sample is true")
                if self.is_mask
                else ("lengths", "an integer of 0 or more")
            )
            raise TypeError(
                f"{name}={self.item!r}: the item must be {valid}, but is a {type(item).__name__}."
            ) from None


def restored(value: Any) -> Any:
    """Inverts ``SamplePadding.trimmed``; returns other values as they are.

    Raises:
        UnknownClassError: the value is none that ``trimmed`` makes.
    """
    if type(value) is not tuple or value[0] != "o" or value[1] != _NAME:
        return value
    try:
        cuts = {leaf: cut for cut, leaves in json.loads(value[2]) for leaf in leaves}
        leaves = _Leaves()
        (tree,) = value[-1]
        return leaves.changed(tree, lambda leaf: _with(leaf, cuts.get(leaves.count, _NOTHING)))
    except Exception as error:
        raise UnknownClassError(f"its padding cannot be restored ({error})") from None


def padding_of(
    owner: str, mask: str | int | None, lengths: str | int | None
) -> SamplePadding | None:
    """Returns what a caller says of padding; None: nothing.

    Raises:
        ValueError: both are given.
        TypeError: neither a name nor a place.
    """
    if mask is None and lengths is None:
        return None
    if mask is not None and lengths is not None:
        raise ValueError(f"{owner}: mask and lengths say the same; give one of them.")
    name, item = ("mask", mask) if lengths is None else ("lengths", lengths)
    if type(item) is not str and (type(item) is not int or item < 0):
        raise TypeError(
            f"{owner}: {name} must be the name of an item of the samples, or its place, counted "
            f"from 0, but is {item!r}."
        )
    return SamplePadding(item, lengths is None)


class _Leaves:
    """Goes through the tensors and lists of a tagged value in order, and counts them."""

    def __init__(self) -> None:
        self.count = -1  # the number of the present one

    def changed(self, value: Any, change: Any) -> Any:
        """Returns the value with ``change(leaf)`` in place of each tensor or list of numbers."""
        if isinstance(value, torch.Tensor):
            self.count += 1
            return change(value)
        if type(value) is not tuple:
            return value
        if value[0] == "[":
            self.count += 1
            if value[1] and all(type(item) in (int, bool) for item in value[1]):
                return change(value)
        return (*value[:-1], tuple([self.changed(item, change) for item in value[-1]]))


def _span_of_mask(mask: Any) -> Span:
    is_true = torch.as_tensor(mask, device="cpu").ne(0)
    size = is_true.shape[-1] if is_true.dim() else -1
    if size < 0:
        raise ValueError(mask)
    places = is_true.reshape(-1, size).any(0).nonzero().flatten().tolist() if size else []
    return Span(places[0], places[-1] + 1, size) if places else Span(0, 0, size)


def _length(item: Any) -> int:
    length = operator.index(item)
    if length < 0:
        raise ValueError(item)
    return length


def _best_cut(leaf: Any, spans: list[Span]) -> _Cut:
    """Returns the cut that leaves the least, as (order of the dimensions, what each loses)."""
    cuts = [_cut_of_list(leaf[1], s) if type(leaf) is tuple else _cut_of(leaf, s) for s in spans]
    return max(cuts, key=lambda cut: sum(a + b for _, a, b in cut[1]), default=_NOTHING)


def _cut_of_list(items: Any, span: Span) -> _Cut:
    if not _may_be_padded(len(items), span):
        return _NOTHING
    kinds = [(type(item), item) for item in items]
    before = span.start - 1 if len(set(kinds[: span.start])) == 1 else 0
    after = len(items) - span.end - 1 if len(set(kinds[span.end :])) == 1 else 0
    return ((), ((0, before, after),)) if before or after else _NOTHING


def _cut_of(tensor: torch.Tensor, span: Span) -> _Cut:
    """Takes the dimensions in the order that they have in memory, so that strides come back."""
    order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    tensor = tensor.permute(order)
    if not tensor.is_contiguous() or not tensor.numel():
        return _NOTHING
    cuts = []
    bits = tensor.unsqueeze(-1)
    bits = bits.view(_BITS.get(tensor.itemsize, torch.int64))
    for dim, size in enumerate(tensor.shape):
        if _may_be_padded(size, span):
            before = max(span.start - 1, 0)
            after = max(size - span.end - 1, 0)
            before = before if before and _is_alike(bits.narrow(dim, 0, span.start), dim) else 0
            after = after if after and _is_alike(bits.narrow(dim, span.end, after + 1), dim) else 0
            if before or after:
                cuts.append((dim, before, after))
                bits = bits.narrow(dim, before, size - before - after)
    is_sorted = order == tuple(range(len(order)))
    return (() if is_sorted else order, tuple(cuts)) if cuts else _NOTHING


def _may_be_padded(size: int, span: Span) -> bool:
    return size == span.size or (span.size is None and size > span.end)


def _is_alike(bits: torch.Tensor, dim: int) -> bool:
    """Whether all slices along a dimension are the same, bit by bit."""
    return torch.equal(bits, bits.narrow(dim, 0, 1).expand_as(bits))


def _without(leaf: Any, cut: _Cut) -> Any:
    order, cuts = cut
    if not cuts:
        return leaf
    if type(leaf) is tuple:
        ((_, before, after),) = cuts
        return (leaf[0], leaf[1][before : len(leaf[1]) - after])
    with torch.inference_mode(False):
        part = leaf.permute(order) if order else leaf
        for dim, before, after in cuts:
            part = part.narrow(dim, before, part.shape[dim] - before - after)
        return part.clone(memory_format=torch.contiguous_format)


def _with(leaf: Any, cut: _Cut) -> Any:
    """Inverts ``_without``: repeats the first and last slices."""
    order, cuts = cut
    if not cuts:
        return leaf
    if type(leaf) is tuple:
        ((_, before, after),) = cuts
        items = leaf[1]
        return (leaf[0], (*items[:1] * before, *items, *items[-1:] * after))
    with torch.inference_mode(False):
        for dim, before, after in cuts:
            leaf = _padded(leaf, dim, before, after)
        if not order:
            return leaf
        return leaf.permute([order.index(dim) for dim in range(len(order))])


def _padded(part: torch.Tensor, dim: int, before: int, after: int) -> torch.Tensor:
    if min(before, after) < 0:
        raise ValueError("a negative size")
    size = part.shape[dim]
    whole = part.new_empty((*part.shape[:dim], before + size + after, *part.shape[dim + 1 :]))
    whole.narrow(dim, 0, before).copy_(part.narrow(dim, 0, 1))
    whole.narrow(dim, before, size).copy_(part)
    whole.narrow(dim, before + size, after).copy_(part.narrow(dim, size - 1, 1))
    return whole
