# SPDX-License-Identifier: Apache-2.0
"""One row of a padded batch at other lengths, to see what padding does to a module's results."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from modcache._call.arguments import Arguments, parted
from modcache._call.kept_attributes import KeptAttributes
from modcache._call.padding import Padding, parameters_of
from modcache._call.rows import select_rows, with_tensors
from modcache._call.tagged import tagged
from modcache._library.global_random import global_states_kept
from modcache._library.mode import mode

_NONE = -1


def run_trials(
    run: Any,
    module: torch.nn.Module,
    method: str,
    function: Callable[[Any], Any],
    input: Any,
    count: int,
    padding: Padding,
) -> bool:
    """Runs single rows at other lengths, if the library has to see what padding does.

    ``run``: the library's half of a call of ``count`` rows. ``function``: runs the method on an
    input. Returns whether any trial was asked for. The module keeps no trace of them.
    """
    if not padding.is_padded:
        return False
    rows = _PaddedRows(input, count, padding.padded_to())
    kept: KeptAttributes | None = None
    while (asked := run.next_trial()) is not None:
        kept = kept or KeptAttributes(module)
        trial = _Trial(*asked)
        is_refused = False
        try:
            is_of_use = trial.altered != _NONE and trial.altered in rows.of_arguments(
                parameters_of(module, method)
            )
            if is_of_use:  # one row may have no need of it where other rows do
                raise TypeError("the method declares it, so it counts as used")
            # A cache inside must not take this row for the one that its key names.
            with global_states_kept(), mode("off"):
                output = function(rows.one(trial))
        except Exception:  # the module may not take a row of this length
            is_refused = True
        finally:
            kept.restore()
        seen = None if is_refused else tagged(output, is_rows=True)
        run.finish_trial(seen, is_refused)
    return kept is not None


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
