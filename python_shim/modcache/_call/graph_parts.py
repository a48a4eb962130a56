# SPDX-License-Identifier: Apache-2.0
"""What a batch of graphs has of each graph.

A ``Batch`` of PyTorch Geometric is one large graph. It notes at which places its attributes were
put together. Where they were changed since, so that those places do not hold, no graph has a part.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from modcache._call.carriers import UnviewableError, is_array, tensor_of_array
from modcache._call.key_column import COLUMN
from modcache._code.names import short_name

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# Attributes that PyTorch Geometric itself keeps beside those of the graphs.
_OF_BATCH = frozenset(
    {
        "_store", "_global_store", "_node_store_dict", "_edge_store_dict", "_edge_attr_cls",
        "_tensor_attr_cls",
    }
)  # fmt: skip
_OF_STORE = frozenset(
    {
        "_mapping", "_parent", "_num_nodes", "_num_graphs", "_slice_dict", "_inc_dict",
        "_cached_attr", "_key",
    }
)  # fmt: skip


class Rows(NamedTuple):
    """An attribute that is a tensor, in which each graph has a part."""

    store: Any
    name: str
    label: str  # the name, with that of the kind of nodes or edges
    value: torch.Tensor
    dim: int  # along which the parts follow each other
    ends: list[int]  # one more than there are graphs; the first is 0
    added: torch.Tensor | None  # what was added to the parts, [graphs, ...]

    def own_values(self) -> torch.Tensor:
        """Returns what the graphs had, on the CPU and one after another in dimension 0."""
        value = self.value.detach().movedim(self.dim, 0).cpu()
        return value if self.added is None else value - self.for_each_row(self.added, self.ends)

    def for_each_row(self, numbers: torch.Tensor, ends: list[int]) -> torch.Tensor:
        """Repeats numbers of graphs, [graphs, ...], for each of their rows."""
        counts = torch.tensor([end - start for start, end in itertools.pairwise(ends)])
        if numbers.dim() == 1:
            numbers = numbers.view(len(numbers), *[1] * (self.value.dim() - 1))
        else:
            numbers = numbers.movedim(self.dim + 1, 1).squeeze(1)
        return numbers.cpu().repeat_interleave(counts.long(), 0)

    def hashed(self) -> Iterator[tuple[bytes, Any]]:
        """Gives a description and the bytes, for each graph."""
        own = self.own_values().resolve_conj().resolve_neg().contiguous()
        row_bytes = math.prod(own.shape[1:]) * own.element_size()
        array: Any = own.reshape(-1).view(torch.uint8).numpy()
        data = memoryview(array)
        described = f"{self.label!r} {own.dtype} {self.dim} {list(own.shape[1:])}"
        for start, end in itertools.pairwise(self.ends):
            yield _framed(f"{described} {end - start}"), data[start * row_bytes : end * row_bytes]


class Items(NamedTuple):
    """An attribute that is a list with an item for each graph."""

    label: str
    items: list[Any]

    def hashed(self) -> Iterator[tuple[bytes, Any]]:
        for item in self.items:
            text = _text_of(item, self.label).encode("utf-8", "surrogatepass")
            yield _framed(f"{self.label!r} {len(text)}"), text


def parts_of_graphs(batch: Any) -> Iterator[Rows | Items]:
    """Finds all that a batch has of its graphs.

    Raises:
        UnviewableError: something in it is no part of a graph, or of an unknown class.
    """
    who = f"a batch of {short_name(type(batch).__bases__[-1])}"
    if not hasattr(batch, "_slice_dict"):
        raise UnviewableError(f"{who} that was not made by Batch.from_data_list")
    for name in vars(batch).keys() - _OF_BATCH:
        raise _changed(who, name)
    for store in batch.stores:
        yield from _Store(batch, store, who).parts()


def places_in(of_batch: dict[Any, Any], store: Any) -> dict[str, Any]:
    """Returns what a batch notes of the attributes of one kind of nodes or edges."""
    places: dict[str, Any] = of_batch if store._key is None else of_batch.get(store._key, {})
    return places


def label_of(store: Any, name: str) -> str:
    return name if store._key is None else f"{store._key}.{name}"


def followed_in(batch: Any, store: Any) -> list[str]:
    """Returns the attributes for which the batch also says of which graph each row is."""
    slices = places_in(batch._slice_dict, store)
    return [
        name
        for name in store
        if isinstance(slices.get(name), torch.Tensor)
        and f"{name}_batch" in store
        and f"{name}_batch" not in slices
    ]


class _Store:
    """The attributes of one kind of nodes or edges, or of whole graphs."""

    def __init__(self, batch: Any, store: Any, who: str) -> None:
        self._batch = batch
        self._store = store
        self._who = who
        self._slices = places_in(batch._slice_dict, store)
        self._added = places_in(batch._inc_dict, store)

    def parts(self) -> Iterator[Rows | Items]:
        for name in vars(self._store).keys() - _OF_STORE:
            raise _changed(self._who, name)
        vectors = self._checked_vectors()
        for name, value in self._store.items():
            if name in vectors or name == COLUMN:  # a graph may have several keys
                continue
            numbers = vars(self._store).get("_num_nodes") if name == "num_nodes" else None
            if numbers is not None:
                yield self._items(name, numbers)
            elif name not in self._slices:
                raise _changed(self._who, label_of(self._store, name))
            elif isinstance(value, torch.Tensor):
                yield self._rows(name, value)
            else:
                yield self._items(name, value)

    def _items(self, name: str, items: Any) -> Items:
        label = label_of(self._store, name)
        if not isinstance(items, (list, tuple)) or len(items) != self._batch.num_graphs:
            raise UnviewableError(f"{self._who} whose {label} is a {short_name(type(items))}")
        return Items(label, list(items))

    def _rows(self, name: str, value: torch.Tensor) -> Rows:
        label = label_of(self._store, name)
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_nested
        if not is_plain or value.layout is not torch.strided or value.is_quantized:
            kind = f"tensor of {value.layout}" if is_plain else short_name(type(value))
            raise UnviewableError(f"{self._who} whose {label} is a {kind}")
        if value.requires_grad and torch.is_grad_enabled():
            raise UnviewableError(f"{self._who} whose {label} requires grad; pass it detached")
        slices, added = self._slices[name], self._added.get(name)
        ends = slices.tolist() if isinstance(slices, torch.Tensor) and slices.dim() == 1 else []
        dim = (self._batch.__cat_dim__(name, value, self._store) or 0) % max(value.dim(), 1)
        is_whole = len(ends) == self._batch.num_graphs + 1 and value.dim() > 0
        if not is_whole or value.size(dim) != ends[-1]:
            raise _changed(self._who, label)
        has_added = added is not None and (added.dim() > 1 or bool(added.any()))
        rows = Rows(self._store, name, label, value, dim, ends, added if has_added else None)
        if has_added and value.dim() > 1 and not _are_in_own_graph(rows):
            raise UnviewableError(f"{self._who} whose {label} leads to nodes of other graphs")
        return rows

    def _checked_vectors(self) -> set[str]:
        """Returns the attributes that say of which graph each row is.

        Raises:
            UnviewableError: they say other than the places of the rows.
        """
        ends = {f"{name}_": self._slices[name] for name in followed_in(self._batch, self._store)}
        found = set()
        for prefix, places in {"": self._store.get("ptr"), **ends}.items():
            batch, ptr = f"{prefix}batch", f"{prefix}ptr"
            given = self._store.get(batch)
            if given is None or places is None:
                continue
            numbers = torch.arange(self._batch.num_graphs)
            expected = numbers.repeat_interleave(places.diff().cpu())
            is_so = torch.equal(given.cpu(), expected) and torch.equal(
                self._store.get(ptr, places).cpu(), places.cpu()
            )
            if not is_so or not self._slices.keys().isdisjoint((batch, ptr)):
                raise _changed(self._who, label_of(self._store, batch))
            found |= {batch, ptr}
        return found


def _are_in_own_graph(rows: Rows) -> bool:
    """Whether the edges of each graph lead to its own nodes."""
    assert rows.added is not None
    own = rows.own_values()
    end = rows.for_each_row(rows.added.diff(dim=0), rows.ends[:-1])
    return bool((own >= 0).all()) and bool((own[: rows.ends[-2]] < end).all())


def _changed(who: str, label: str) -> UnviewableError:
    return UnviewableError(
        f"{who} whose {label} was set or changed after it was put together, so that no graph has "
        "a part of it; set it on each graph"
    )


def _framed(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(4, "little") + data


def _text_of(item: Any, label: str) -> str:
    """Writes an item unambiguously. Raises UnviewableError for one of an unknown class."""
    if type(item) in _PLAIN:
        return repr(item)
    if type(item) in (list, tuple):
        return f"{type(item).__name__}({', '.join(_text_of(part, label) for part in item)})"
    if type(item) is dict:
        parts = [f"{_text_of(key, label)}: {_text_of(part, label)}" for key, part in item.items()]
        return f"{{{', '.join(parts)}}}"
    tensor = tensor_of_array(item) if is_array(item) else None
    if tensor is None:
        raise UnviewableError(f"graphs whose {label} is a {short_name(type(item))}")
    digest = hashlib.blake2b(tensor.contiguous().numpy().tobytes(), digest_size=32).hexdigest()
    return f"array({item.dtype.str}, {list(tensor.shape)}, {digest})"
