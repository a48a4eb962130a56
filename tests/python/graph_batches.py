# SPDX-License-Identifier: Apache-2.0
"""Graphs, and batches of them: those of PyTorch Geometric, or a stand-in where that is missing.

The stand-in has what modcache knows of the real ones, by the same names. tests/recipes runs the
same tests with the real ones.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import types
from collections.abc import Iterator, MutableMapping
from typing import Any

import modcache
import torch
from torch import nn

RUNS = logging.getLogger("graph_batches")  # a logger is no state of a module
LIBRARY = "torch_geometric.data.batch"
OF_ONE = "torch_geometric.data.data"
FEATURES = 4
_numbers = itertools.count()


class _Store(MutableMapping[str, Any]):
    _key = None

    def __init__(self, mapping: dict[str, Any]) -> None:
        self._mapping = mapping

    def __getitem__(self, name: str) -> Any:
        return self._mapping[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._mapping[name] = value

    def __delitem__(self, name: str) -> None:
        del self._mapping[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)


class _Data:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__["_store"] = _Store(attributes)

    def __getattr__(self, name: str) -> Any:
        if name in self._store:
            return self._store[name]
        try:
            return vars(self._store)[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            vars(self._store)[name] = value
        else:
            self._store[name] = value

    def __copy__(self) -> Any:
        made = type(self)(**self._store)
        private = {k: v for k, v in vars(self._store).items() if k != "_mapping"}
        vars(made._store).update(private)
        return made

    @property
    def stores(self) -> list[_Store]:
        return [self._store]

    def __cat_dim__(self, name: str, value: Any, store: Any) -> int:
        return -1 if "index" in name else 0

    def to(self, device: Any) -> Any:
        for name, value in self._store.items():
            if isinstance(value, torch.Tensor):
                self._store[name] = value.to(device)
        return self


class _Batch:
    @staticmethod
    def from_data_list(graphs: list[Any], follow_batch: Any = ()) -> Any:
        batch: Any = _DataBatch()
        nodes = torch.tensor([len(graph.x) for graph in graphs])
        slices, added = {}, {}
        for name, first in graphs[0]._store.items():
            values = [graph._store[name] for graph in graphs]
            if not isinstance(first, torch.Tensor):
                are_numbers = isinstance(first, (int, float))
                batch._store[name] = torch.tensor(values) if are_numbers else values
                slices[name], added[name] = torch.arange(len(graphs) + 1), None
                continue
            dim = batch.__cat_dim__(name, first, None)
            sizes = torch.tensor([0, *(value.shape[dim] for value in values)])
            slices[name], before = sizes.cumsum(0), torch.zeros(len(graphs), dtype=torch.int64)
            if "index" in name:
                before[1:] = nodes.cumsum(0)[:-1]
                values = [v + start for v, start in zip(values, before.tolist(), strict=True)]
            batch._store[name], added[name] = torch.cat(values, dim), before
        batch.batch = torch.arange(len(graphs)).repeat_interleave(nodes)
        batch.ptr = torch.tensor([0, *nodes.cumsum(0).tolist()])
        batch._num_graphs, batch._slice_dict, batch._inc_dict = len(graphs), slices, added
        return batch

    @property
    def num_graphs(self: Any) -> int:
        return int(vars(self._store)["_num_graphs"])

    def get_example(self: Any, row: int) -> Any:
        graph: Any = _Data()
        for name, ends in self._slice_dict.items():
            value = self._store[name]
            start, end = ends[row : row + 2].tolist()
            if not isinstance(value, torch.Tensor):
                graph._store[name] = value[row]
                continue
            added = self._inc_dict[name]
            part = value.narrow(self.__cat_dim__(name, value, None), start, end - start)
            graph._store[name] = part if added is None else part - added[row]
        return graph


class _DataBatch(_Batch, _Data):
    pass


try:
    from torch_geometric.data import Batch, Data  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    Batch, Data = _Batch, _Data
    for name, attributes in ((LIBRARY, {"Batch": _Batch}), (OF_ONE, {"BaseData": _Data})):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(attributes)


def graph(number: int, nodes: int, edges: int) -> Any:
    generator = torch.Generator().manual_seed(number)
    return Data(
        x=torch.randn(nodes, FEATURES, generator=generator),
        edge_index=torch.randint(0, nodes, (2, edges), generator=generator),
        edge_weight=torch.rand(edges, generator=generator),
        name=f"graph {number}",
        y=number,
    )


def graphs() -> list[Any]:
    """Graphs in which nodes and edges differ in number."""
    sizes = [(3, 5), (1, 0), (4, 2), (2, 7), (6, 6), (3, 4)]
    return [graph(number, nodes, edges) for number, (nodes, edges) in enumerate(sizes)]


def batch_of(rows: list[int], of: list[Any] | None = None) -> Any:
    given = graphs() if of is None else of
    return Batch.from_data_list([given[row] for row in rows])


class Convolution(nn.Module):
    """Nodes with the sum of what their edges bring. ``RUNS`` hears which graphs it was run on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 3).requires_grad_(False)
        self.scope = f"graphs/{next(_numbers)}"  # what was learned of others is not known of it

    def nodes(self, batch: Any) -> torch.Tensor:
        return self.linear(batch.x).index_add(0, batch.edge_index[1], self.edges(batch))

    def edges(self, batch: Any) -> torch.Tensor:
        RUNS.info(batch.name)
        brought: torch.Tensor = self.linear(batch.x[batch.edge_index[0]])
        return brought * batch.edge_weight[:, None]

    def pooled(self, batch: Any) -> torch.Tensor:
        empty = torch.zeros(batch.num_graphs, 3, device=batch.x.device)
        return empty.index_add(0, batch.batch, self.nodes(batch).tanh())

    def every_kind(self, batch: Any) -> dict[str, Any]:
        return {
            "edges": self.edges(batch).tanh(),
            "of": (self.pooled(batch), self.nodes(batch)),
            "kind": "convolution",
        }

    def beside_others(self, batch: Any) -> torch.Tensor:
        nodes = self.nodes(batch)
        return nodes - nodes.mean(0)


def warned_of() -> Convolution:
    """A module of a class of its own, as each class is warned about once."""
    number = next(_numbers)
    made: Convolution = type(f"Convolution{number}", (Convolution,), {})()
    return made


def looked_up(module: Any, batch: Any, rows: list[int], method: str, **options: Any) -> Any:
    keys = [f"g/{row}" for row in rows]
    options = {"scope": module.scope, **options}
    return modcache.lookup_or_run(module, batch, keys, method=method, **options)


@contextlib.contextmanager
def heard() -> Iterator[list[list[str]]]:
    """The graphs of each run of a module."""
    runs: list[list[str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: runs.append(record.msg)  # type: ignore[method-assign]
    RUNS.addHandler(handler)
    RUNS.setLevel(logging.INFO)
    RUNS.propagate = False
    yield runs
    RUNS.removeHandler(handler)


def said(capfd: Any) -> str:
    """The warnings since the last question."""
    modcache.flush()
    return str(capfd.readouterr().err)


def plain(module: Any, batch: Any, method: str) -> Any:
    """The result without the cache, in a run that is not heard of."""
    RUNS.setLevel(logging.WARNING)
    try:
        return getattr(module, method)(batch)
    finally:
        RUNS.setLevel(logging.INFO)
