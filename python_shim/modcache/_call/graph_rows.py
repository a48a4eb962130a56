# SPDX-License-Identifier: Apache-2.0
"""Results for batches of graphs: which rows of a tensor belong to which graph.

A tensor may have a row for each graph, node or edge, and its first size does not say which. So it
is not guessed: at the first runs, in up to eight, one graph runs once more by itself, or beside
another if it was alone, and must give the same. What that leaves open is cut only where each
possibility cuts it alike. What was seen is kept for each module, method and arguments, in this
process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from modcache._call.arguments import Arguments
from modcache._call.graphs import (
    ONE_EACH,
    are_graphs,
    change_of,
    contents_of,
    counts_of_graphs,
    is_used,
    with_altered_second,
)
from modcache._call.parts import data_in
from modcache._call.rows import next_rows, select_rows, with_graphs
from modcache._call.tagged import UnknownClassError, tagged
from modcache._call.tagged_leaves import form_of, is_refused, leaves_of, with_leaves
from modcache._library.global_random import global_states_kept

_ENOUGH_AGREEMENTS = 8  # a graph may agree by chance, as a maximum does that lies in it
_MOST_FAILURES = 3
_MOST_LEARNED = 4096
_TOLERANCE = 1e-3  # relative to the largest number of a tensor
_TOLERANCE_OF_FEW_BITS = 5e-2  # numbers of few bits depend on the batch that they are computed in
_BESIDE_OTHERS = "a graph gives another result where other graphs are beside it"


@dataclass
class _Learned:
    """What the runs of a module have shown."""

    kinds: list[frozenset[str]] = field(default_factory=list)  # of each tensor: names of counts
    agreements: int = 0
    failures: int = 0
    refusal: str = ""  # why nothing is cached any more


_learned: dict[tuple[str, ...], _Learned] = {}


class _RefusedError(Exception):
    """A result cannot be cut: the text says why.

    ``weight``: how much that says of results to come; with _MOST_FAILURES, none of them is tried.
    """

    def __init__(self, why: str, weight: int = 0, *, is_impure: bool = False) -> None:
        super().__init__(why)
        self.weight = weight
        self.is_impure = is_impure


def rows_of_graphs(input: Any, count: int, seen: Any, *who: str) -> RowsOfGraphs | None:
    """Returns the rows of a call with a key for each graph; None: its input has no graphs.

    ``seen``: the input as the library takes it. ``who``: the module and the method.
    """
    if not is_used() or not _batches_in(input):
        return None
    return RowsOfGraphs(input, count, (*who, _described(seen)))


def _described(seen: Any) -> str:
    """Describes what an input has beside its tensors."""
    if isinstance(seen, (tuple, list)):
        return f"({', '.join(map(_described, seen))})"
    if isinstance(seen, dict):
        return f"{{{', '.join(f'{key!r}: {_described(part)}' for key, part in seen.items())}}}"
    return "tensor" if isinstance(seen, torch.Tensor) else repr(seen)


class RowsOfGraphs:
    """The rows of one call whose input has batches of ``count`` graphs."""

    def __init__(self, input: Any, count: int, described: tuple[str, ...]) -> None:
        self.input = input
        self.count = count
        self.counts: dict[str, list[int]] = {}
        for number, batch in enumerate(_batches_in(input)):
            for name, counts in counts_of_graphs(batch).items():
                self.counts[name if name == ONE_EACH else f"{number}.{name}"] = counts
        if len(_learned) >= _MOST_LEARNED:
            _learned.clear()
        self.learned = _learned.setdefault(described, _Learned())

    def counts_at(self, row: int) -> tuple[int, ...]:
        return tuple(counts[row] for counts in self.counts.values())

    def joined(self, is_apart: bool, value: Any) -> Any:
        """Puts the rows that the library gives together, in the order of the batch.

        Raises:
            UnknownClassError: they are not the rows of these graphs.
        """
        rows = value if is_apart else (value,)
        if len(set(map(form_of, rows))) > 1:
            raise UnknownClassError("results of its graphs are of several kinds")
        columns = zip(*map(leaves_of, rows), strict=True)

        def together(_: torch.Tensor) -> torch.Tensor:
            parts = list(next(columns))
            sizes = [len(part) for part in parts] if is_apart else [parts[0].shape[1]] * self.count
            if sizes not in self.counts.values():
                raise UnknownClassError("it is that of graphs of other sizes")
            return _one_after_another(parts) if is_apart else parts[0].flatten(0, 1)

        return with_leaves(rows[0], together)


class RunOfGraphs:
    """The library's half of a call, which gets results of the module graph by graph.

    Args:
        run: that half.
        module: runs the module on an input.
        rows: that run first.
    """

    def __init__(
        self, run: Any, graphs: RowsOfGraphs, module: Callable[[Any], Any], rows: list[int]
    ) -> None:
        run.trust_rows()  # whose rows they are is seen here
        self._run = run
        self._graphs = graphs
        self._learned = graphs.learned
        self._module = module
        self._rows = rows
        self._contents = _contents_in(graphs.input)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def next_rows(self) -> Any:
        self._rows = next_rows(self._run) or []
        return self._rows

    def finish(self, output: Any, because: str, *facts: Any) -> Any:
        """Gives the library a result, tagged, and the reason why it is not to be stored."""
        leaves = list(leaves_of(output))
        because = because or _change_in(self._graphs.input, self._contents)
        why = "it is no result of rows"  # where the library has a reason of its own
        may_be_kept = not because and not is_refused(output)
        if may_be_kept and leaves and not any(leaf.requires_grad for leaf in leaves):
            try:
                return self._finished(output, self._sizes_of(output, leaves), facts)
            except _RefusedError as refusal:
                why = self._noted(refusal)
                because = why if refusal.is_impure else ""
        # It is taken for no result of rows, so that the whole batch runs if only a part did.
        return self._run.finish(("(", (("?", why), output)), because, *facts)

    def _noted(self, refusal: _RefusedError) -> str:
        self._learned.failures += refusal.weight
        if self._learned.failures >= _MOST_FAILURES:
            self._learned.refusal = str(refusal)
        return str(refusal)

    def _finished(self, output: Any, sizes: list[list[int]], facts: tuple[Any, ...]) -> Any:
        """``sizes``: of each tensor, the number of its rows for each graph that ran."""
        count = len(self._rows)
        if all(len(set(some)) == 1 for some in sizes):
            size = iter(sizes)
            cut = with_leaves(output, lambda leaf: torch.unflatten(leaf, 0, (count, next(size)[0])))
            return self._run.finish(cut, "", *facts)
        columns = [
            torch.split(leaf, some) for leaf, some in zip(leaves_of(output), sizes, strict=True)
        ]

        def part(number: int) -> Any:
            column = iter(columns)
            return with_leaves(output, lambda _: next(column)[number].unsqueeze(0))

        return self._run.finish_apart(tuple(map(part, range(count))), "", *facts)

    # ----- whose rows they are

    def _sizes_of(self, output: Any, leaves: list[torch.Tensor]) -> list[list[int]]:
        known = self._learned.kinds or [frozenset(self._graphs.counts)] * len(leaves)
        if len(known) != len(leaves):
            raise _RefusedError("a result of another form than the last one")
        kinds = [
            self._narrowed(leaf, names, self._rows)
            for leaf, names in zip(leaves, known, strict=True)
        ]
        if self._learned.agreements < _ENOUGH_AGREEMENTS:
            kinds = self._tried(output, leaves, kinds)
            self._learned.kinds = kinds
            self._learned.agreements += 1
            self._learned.failures = 0
        return [self._sizes(leaf, names) for leaf, names in zip(leaves, kinds, strict=True)]

    def _narrowed(
        self, leaf: torch.Tensor, names: frozenset[str], rows: list[int]
    ) -> frozenset[str]:
        """Returns those counts of which the tensor may have the rows, in a run of these rows."""
        size = leaf.shape[0] if leaf.dim() else -1
        found = frozenset(name for name in names if sum(self._counts(name, rows)) == size)
        if not found:
            raise _RefusedError(
                f"a tensor of the shape {list(leaf.shape)} for {len(rows)} graphs, which has "
                "neither a row for each graph nor one for each node or edge",
                _MOST_FAILURES,
            )
        return found

    def _sizes(self, leaf: torch.Tensor, names: frozenset[str]) -> list[int]:
        sizes = {tuple(self._counts(name, self._rows)) for name in names}
        if len(sizes) > 1:
            possible = ", ".join(sorted(name.partition(".")[2] or name for name in names))
            raise _RefusedError(
                f"a tensor of the shape {list(leaf.shape)} for {len(self._rows)} graphs, of which "
                f"it cannot be told here whether its rows are those of {possible}"
            )
        return list(sizes.pop())

    def _counts(self, name: str, rows: list[int]) -> list[int]:
        counts = self._graphs.counts[name]
        return [counts[row] for row in rows]

    # ----- one graph once more

    def _tried(
        self, output: Any, leaves: list[torch.Tensor], kinds: list[frozenset[str]]
    ) -> list[frozenset[str]]:
        row = max(self._rows, key=self._telling)
        sample, rows = self._sample_with(row)
        contents = _contents_in(sample)
        try:
            with global_states_kept():
                again = tagged(self._module(sample), is_rows=True)
        except Exception as error:  # the module's own
            kind = type(error).__name__
            why = f"that of a module that cannot be run on one graph of its batch ({kind})"
            raise _RefusedError(why, 1) from None
        if change := _change_in(sample, contents):
            raise _RefusedError(change, _MOST_FAILURES, is_impure=True)
        if form_of(again) != form_of(output):
            raise _RefusedError(_BESIDE_OTHERS, _MOST_FAILURES, is_impure=True)
        return [
            self._agreeing(leaf, other, self._narrowed(other, names, rows), row)
            for leaf, other, names in zip(leaves, leaves_of(again), kinds, strict=True)
        ]

    def _telling(self, row: int) -> tuple[int, int]:
        """Ranks graphs by how well they tell counts apart, and small ones first."""
        counts = self._graphs.counts_at(row)
        return len(set(counts)), -sum(counts)

    def _sample_with(self, row: int) -> tuple[Any, list[int]]:
        """Returns an input of the graph in other company, and the rows in that."""
        graphs = self._graphs
        if len(self._rows) > 1:
            return select_rows(graphs.input, [row], graphs.count), [row]
        others = [other for other in range(graphs.count) if other != row]
        if not others:
            return self._beside_altered(row), [row, row]
        counts = graphs.counts_at(row)
        rows = [row, max(others, key=lambda other: graphs.counts_at(other) != counts)]
        return select_rows(graphs.input, rows, graphs.count), rows

    def _beside_altered(self, row: int) -> Any:
        altered = []

        def alter(batch: Any) -> Any:
            made = with_altered_second(batch)
            altered.append(made is not None)
            return batch if made is None else made

        sample = with_graphs(select_rows(self._graphs.input, [row, row], self._graphs.count), alter)
        if not any(altered):
            raise _RefusedError(
                "that of a single graph, beside which no other was seen: run two different graphs "
                "in one batch before"
            )
        return sample

    def _agreeing(
        self, leaf: torch.Tensor, again: torch.Tensor, names: frozenset[str], row: int
    ) -> frozenset[str]:
        """Returns those counts by which the graph has the same part of both tensors."""
        ran = self._rows[: self._rows.index(row) + 1]
        found = set()
        for name in names:
            *before, size = self._counts(name, ran)
            try:
                if are_alike(again[:size], leaf.narrow(0, sum(before), size)):
                    found.add(name)
            except Exception as error:  # torch lacks operators of some dtypes
                raise _RefusedError(f"one that cannot be compared ({error})", 1) from None
        if not found:
            raise _RefusedError(_BESIDE_OTHERS, _MOST_FAILURES, is_impure=True)
        return frozenset(found)


def are_alike(again: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether two results of one input agree but for the order of sums, on average too."""
    if not given.numel():
        return True
    if not (given.is_floating_point() or given.is_complex()):
        return torch.equal(again, given)
    has_few_bits = given.element_size() < 4 or torch.is_autocast_enabled(given.device.type)
    tolerance = _TOLERANCE_OF_FEW_BITS if has_few_bits else _TOLERANCE
    wide = torch.complex128 if given.is_complex() else torch.float64
    again, given = again.detach().to(wide), given.detach().to(wide)
    is_same = (again == given) | (again.isnan() & given.isnan())
    apart = (again - given).abs().masked_fill(is_same, 0)
    size = given.abs()
    size = size.masked_fill(~size.isfinite(), 0)
    is_near = bool(apart.max() <= tolerance * size.max())  # False for NaN
    # Beside one large number, the largest difference of all others would look small.
    return is_near and bool(apart.mean() <= tolerance / 5 * size.mean())


def _one_after_another(parts: list[torch.Tensor]) -> torch.Tensor:
    """Puts the parts of all graphs together, where the module's results are if it ran."""
    device = next((part.device for part in parts if part.device.type != "cpu"), parts[0].device)
    return torch.cat([part.to(device) for part in parts])


def _batches_in(input: Any) -> list[Any]:
    told = input.told if type(input) is Arguments and input.told is not None else input
    return [data for data in data_in(told) if are_graphs(data)]


def _contents_in(input: Any) -> list[Any]:
    return [contents_of(batch) for batch in _batches_in(input)]


def _change_in(input: Any, before: list[Any]) -> str:
    """Names what a run changed in the graphs of its input; "": nothing."""
    for batch, contents in zip(_batches_in(input), before, strict=True):
        if name := change_of(batch, contents):
            return f"its run changed {name} of the batch that it got, which a hit would not do"
    return ""
