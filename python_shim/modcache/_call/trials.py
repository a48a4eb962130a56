# SPDX-License-Identifier: Apache-2.0
"""Runs of a module that the caller did not ask for, and that leave no trace.

The library asks for a check run before the first result of a scope, method and form is stored by
row (csrc/module/call/row_proof.h): it shows whether a module's results consist of rows. One row of
a padded batch at other lengths shows what padding does to them.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from modcache._call.arguments import Arguments, parted
from modcache._call.carriers import is_array
from modcache._call.padding import Padding, parameters_of
from modcache._call.rows import select_rows, with_data_changed, with_tensors
from modcache._call.tagged import tagged
from modcache._library.global_random import global_states_kept
from modcache._library.mode import mode

_ABSENT: Any = object()


@contextlib.contextmanager
def unnoticed(module: torch.nn.Module) -> Iterator[None]:
    """Restores the global random state, and the attributes, tensors and submodules of a module.

    A run of a longer row than any before may leave something behind, such as the greatest length
    that was seen, and the model must not notice. What is changed in place, such as the elements of
    a tensor or a list, is not restored. The mode is ``off``, so that a cache inside does not take
    the run's rows for those that its keys name.
    """
    kept = [
        (attributes, dict(attributes))
        for part in module.modules()
        for attributes in (vars(part), part._parameters, part._buffers, part._modules)
        if type(attributes) is dict  # TorchScript keeps its own
    ]
    try:
        with global_states_kept(), mode("off"):
            yield
    finally:
        for attributes, before in kept:
            if list(attributes) != list(before):  # their order counts, in a Sequential for one
                attributes.clear()
            for name, value in before.items():
                if attributes.get(name, _ABSENT) is not value:
                    attributes[name] = value


def run_check(
    module: torch.nn.Module,
    function: Callable[[Any], Any],
    input: Any,
    count: int,
    asked: list[Any],
) -> tuple[Any, bool]:
    """Makes a check run; returns its output, tagged, or None and that it failed.

    ``asked``: as the library describes it. ``function``: runs the method on an input. The module
    retains no trace of the run.
    """
    try:
        made = check_input(input, count, *asked)
        with unnoticed(module):
            return tagged(function(made), is_rows=True), False
    except Exception:  # the module may not take such a batch
        return None, True


def check_input(
    input: Any, count: int, row: int, rows: int, has_made_rows: bool, exchanges_bits: bool
) -> Any:
    """Returns ``rows`` rows, all of them row ``row`` of an input of ``count`` rows.

    ``has_made_rows``: all but the last one are made from it, as the library makes them.

    Raises:
        TypeError: nothing in it can be made another row.
    """
    same = select_rows(input, [row] * rows, count)
    if not has_made_rows:
        return same
    made = 0

    def with_made(data: Any) -> Any:
        nonlocal made
        changed = _with_made(data, rows, exchanges_bits)
        made += changed is not data
        return changed

    changed = with_data_changed(same, with_made)
    if not made:
        raise TypeError("no row can be made of images alone")
    return changed


def _with_made(data: Any, rows: int, exchanges_bits: bool) -> Any:
    """Replaces the rows of a tensor or array but for the last; what has other rows stays."""
    if data.ndim < 2 or data.shape[0] != rows:
        return data
    if is_array(data):
        return _with_made(torch.from_numpy(data), rows, exchanges_bits).numpy()
    return torch.cat([torch.ops.cache._made_rows(data[:-1], exchanges_bits), data[-1:]])


_NONE = -1


def run_trial(
    module: torch.nn.Module,
    method: str,
    function: Callable[[Any], Any],
    input: Any,
    count: int,
    padding: Padding,
    asked: list[Any],
) -> tuple[Any, bool]:
    """Runs a single row at another length, as ``run_check`` does."""
    rows = _PaddedRows(input, count, padding.padded_to())
    trial = _Trial(*asked)
    try:
        is_of_use = trial.altered != _NONE and trial.altered in rows.of_arguments(
            parameters_of(module, method)
        )
        if is_of_use:  # one row may have no need of it where other rows do
            raise TypeError("the method declares it, so it counts as used")
        with unnoticed(module):
            return tagged(function(rows.one(trial)), is_rows=True), False
    except Exception:  # the module may not take a row of this length
        return None, True


class _Trial(NamedTuple):
    """What the library asks for."""

    row: int
    length: int  # of the padded tensors
    kept: int  # those that are left as long as they are, as bits by their numbers
    altered: int  # the number of the one that gets other numbers, or _NONE
    is_left: bool  # padding comes before the true part


class _PaddedRows:
    """An input whose padded tensors have numbers, as the library counts them."""

    def __init__(self, input: Any, count: int, longest: int) -> None:
        self._input = input
        self._count = count
        self._longest = longest
        # One number for each tensor of the input, in order.
        self._numbers: list[int] = []

    def one(self, trial: _Trial) -> Any:
        """Takes one row, and cuts its padded tensors, or extends them with zeros."""
        left = iter(self._numbered())

        def changed(tensor: torch.Tensor) -> torch.Tensor:
            number = next(left)
            if tensor.dim() == 0 or tensor.size(0) != 1:
                return tensor  # an ignored argument without rows
            is_kept = number != _NONE and trial.kept >> number & 1
            to = self._longest if is_kept else trial.length
            cut: torch.Tensor = torch.ops.cache._one_row_of_length(
                tensor, 0, self._longest, to, trial.is_left
            )
            return with_other_numbers(cut) if number == trial.altered != _NONE else cut

        return with_tensors(select_rows(self._input, [trial.row], self._count), changed)

    def of_arguments(self, names: list[str]) -> set[int]:
        """The numbers of the padded tensors in arguments by place, or by one of these names."""
        numbers = self._numbered()
        found = set(numbers)
        if type(self._input) is Arguments:
            by_place, by_name = parted(tuple(self._input), self._input.names)
            left = iter(numbers[len(_tensors(by_place)) :])
            for name, value in by_name.items():
                of_value = {next(left) for _ in _tensors(value)}
                found -= set() if name in names else of_value
        return found - {_NONE}

    def _numbered(self) -> list[int]:
        """The library does not count what is not padded, and does not see ignored arguments."""
        if not self._numbers:
            told = self._input.told if type(self._input) is Arguments else None
            known: dict[int, deque[int]] = defaultdict(deque)
            seen = _tensors(self._input if told is None else told)
            padded = [t for t in seen if t.dim() > 1 and t.size(1) == self._longest]
            for number, tensor in enumerate(padded):
                known[id(tensor)].append(number)
            self._numbers = [
                known[id(tensor)].popleft() if known[id(tensor)] else _NONE
                for tensor in _tensors(self._input)
            ]
        return self._numbers


def _tensors(value: Any) -> list[torch.Tensor]:
    """Finds the tensors of an input in the order in which ``with_tensors`` replaces them."""
    found: list[torch.Tensor] = []

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    with_tensors(value, noted)
    return found


def with_other_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the same form with other numbers.

    Integers that differ stay between their least and their greatest: they may be indices.
    """
    if tensor.numel() == 0:
        return tensor
    if tensor.dtype == torch.bool:
        return ~tensor
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        waves = torch.arange(1, tensor.numel() + 1, dtype=torch.float64, device=tensor.device).sin()
        return waves.reshape(tensor.shape).to(tensor.dtype)
    least, greatest = tensor.min(), tensor.max()
    following = tensor + 1
    if bool(least != greatest):
        return torch.where(tensor == greatest, least, following)
    if tensor.device.type != "cpu":  # an index beyond a table would break the process
        raise TypeError("nothing tells another number that may be in its place")
    return following
