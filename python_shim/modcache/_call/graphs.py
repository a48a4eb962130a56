# SPDX-License-Identifier: Apache-2.0
"""Batches of graphs of PyTorch Geometric, whose rows are its graphs.

The library is told of each graph by a digest of all that the batch has of it. Nothing is imported:
a batch can be here only after its class was.
"""

from __future__ import annotations

import copy
import hashlib
import sys
from typing import Any

import torch

from modcache._call.digests import DIGEST_BYTES, view_of_digest, view_of_digests
from modcache._call.graph_parts import (
    Rows,
    followed_in,
    label_of,
    parts_of_graphs,
    places_in,
)
from modcache._code.objects import is_a

GRAPHS = "modcache:graphs"
ONE_EACH = "graphs"  # the name of the count that is 1 for each graph
_MODULE = "torch_geometric.data.batch"
_WRONG_COUNT = "keys were given, but a tensor"
_HINT = (
    ". The tensors of a batch of graphs (x, edge_index, batch) have no row for each graph: cache a "
    "module whose forward takes the Batch of PyTorch Geometric itself, and call it on that"
)


def is_used() -> bool:
    """Whether any batch may be here."""
    return _MODULE in sys.modules


def are_graphs(value: Any) -> bool:
    """Whether it is a Batch."""
    batch: Any = getattr(sys.modules.get(_MODULE), "Batch", None)
    return batch is not None and is_a(value, batch)


def is_graph(value: Any) -> bool:
    """Whether it is a single graph."""
    data: Any = getattr(sys.modules.get("torch_geometric.data.data"), "BaseData", None)
    return data is not None and is_a(value, data) and not are_graphs(value)


def count_of_graphs(batch: Any) -> int:
    return int(batch.num_graphs)


def check_count(batch: Any, count: int) -> None:
    """Raises ValueError unless there is one key for each graph."""
    if count_of_graphs(batch) != count:
        raise ValueError(
            f"modcache.lookup_or_run: {count} keys were given, but the batch has "
            f"{count_of_graphs(batch)} graphs; give one key for each (for one key for the whole "
            "batch, pass it as a str)"
        )


def hint_for(mistake: str, input: Any) -> str:
    """Returns what to add to the message of a wrong number of keys; "": it is not about graphs."""
    if not is_used() or _WRONG_COUNT not in mistake or not isinstance(input, tuple):
        return ""
    tensors = [part for part in input if isinstance(part, torch.Tensor)]
    edges = [part for part in tensors if part.dim() == 2 and part.shape[0] == 2]
    return _HINT if any(not part.is_floating_point() for part in edges) else ""


def class_of_graphs(batch: Any) -> type:
    """Returns the class of the graphs; that of a batch is made of it."""
    return type(batch).__bases__[-1]


def counts_of_graphs(batch: Any) -> dict[str, list[int]]:
    """Counts what each graph has: its nodes, and the rows of each attribute.

    REQUIRES: ``digests_of_graphs`` raises nothing.
    """
    counts = {ONE_EACH: [1] * count_of_graphs(batch)}
    for store in batch.stores:
        places = {**places_in(batch._slice_dict, store), "nodes": store.get("ptr")}
        for name, ends in places.items():
            if isinstance(ends, torch.Tensor) and ends.dim() == 1:
                counts[label_of(store, name)] = ends.diff().tolist()
    return counts


def digests_of_graphs(batch: Any) -> list[bytes]:
    """Hashes each graph of a batch, with all of its attributes.

    Raises:
        UnviewableError: something in it is no part of a graph, or of an unknown class.
    """
    hashes = [hashlib.blake2b(digest_size=DIGEST_BYTES) for _ in range(count_of_graphs(batch))]
    # The order in a batch is that of its first graph.
    for attribute in sorted(parts_of_graphs(batch), key=lambda one: one.label):
        for hash_of_graph, (described, data) in zip(hashes, attribute.hashed(), strict=True):
            hash_of_graph.update(described)
            hash_of_graph.update(data)
    return [hash_of_graph.digest() for hash_of_graph in hashes]


def view_of_graphs(batch: Any) -> tuple[torch.Tensor, ...]:
    """A batch with one key for each graph, as the library gets it: its device, and the digests."""
    rows = torch.empty(count_of_graphs(batch), 0, device=_device(batch))
    return rows, *view_of_digests(digests_of_graphs(batch))


def view_of_whole_batch(batch: Any) -> tuple[torch.Tensor, ...]:
    """A batch with one key for all of it, as the library gets it."""
    digests = b"".join(digests_of_graphs(batch))
    digest = hashlib.blake2b(digests, digest_size=DIGEST_BYTES).digest()
    return torch.empty(0, device=_device(batch)), *view_of_digest(digest)


def select_graphs(batch: Any, rows: list[int]) -> Any:
    """Puts some graphs of a batch together to another one."""
    kind: Any = sys.modules[_MODULE].Batch
    followed = {name for store in batch.stores for name in followed_in(batch, store)}
    graphs = [batch.get_example(row) for row in rows]
    return kind.from_data_list(graphs, follow_batch=sorted(followed)).to(_device(batch))


def with_altered_second(batch: Any) -> Any:
    """Returns a batch of two graphs in which the second is another graph; None: it would not be.

    Its nodes, or edges, all are like the first of them, so that each has values that occur.
    """
    made = copy.copy(batch)
    is_altered = False
    for rows in parts_of_graphs(batch):
        if not isinstance(rows, Rows) or rows.added is not None:
            continue
        start, end = rows.ends[1:]
        second = rows.value.narrow(rows.dim, start, end - start)
        if end - start > 1 and not torch.equal(second, _like_first(second, rows.dim)):
            first = rows.value.narrow(rows.dim, 0, start)
            place = [store is rows.store for store in batch.stores].index(True)
            value = torch.cat([first, _like_first(second, rows.dim)], rows.dim)
            made.stores[place][rows.name] = value
            is_altered = True
    return made if is_altered else None


def contents_of(batch: Any) -> dict[str, tuple[Any, int]]:
    """Returns all attributes of a batch, with the versions of tensors, for ``change_of``."""
    return {
        label_of(store, name): (value, _version(value))
        for store in batch.stores
        for name, value in store.items()
    }


def change_of(batch: Any, before: dict[str, tuple[Any, int]]) -> str:
    """Names an attribute that is not what it was; "": all are."""
    now = contents_of(batch)
    absent = (None, -1)
    for name in {**before, **now}:
        (value, version), (known, known_version) = now.get(name, absent), before.get(name, absent)
        if value is not known or version != known_version:
            return name
    return ""


def _version(value: Any) -> int:
    is_counted = isinstance(value, torch.Tensor) and not value.is_inference()
    return int(value._version) if is_counted else -1


def _like_first(value: torch.Tensor, dim: int) -> torch.Tensor:
    return value.narrow(dim, 0, 1).expand_as(value)


def _device(batch: Any) -> torch.device:
    values = (value for store in batch.stores for value in store.values())
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
