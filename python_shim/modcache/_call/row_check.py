# SPDX-License-Identifier: Apache-2.0
"""Check runs, which show whether a module's results consist of rows.

The library asks for one before the first result of a scope, method and form is stored by row
(csrc/module/call/row_proof.h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from modcache._call.carriers import is_array
from modcache._call.kept_attributes import KeptAttributes
from modcache._call.rows import select_rows, with_data_changed
from modcache._call.tagged import tagged
from modcache._library.global_random import global_states_kept
from modcache._library.mode import mode

# Without an object, as it is called at each run.
_next_check: Any = torch.classes.cache.RowsRun.next_check


def run_checks(
    run: Any, module: torch.nn.Module, function: Callable[[Any], Any], input: Any, count: int
) -> bool:
    """Makes the check runs that the library asks for, if any; returns whether it asked.

    ``run``: the library's half of a call of ``count`` rows. ``function``: runs the method on an
    input. The module keeps no trace of them.
    """
    asked = _next_check(run)
    if asked is None:
        return False
    while asked is not None:
        seen = None
        has_failed = False
        kept = None
        try:
            kept = KeptAttributes(module)
            made = check_input(input, count, *asked)
            # A cache inside must not take these rows for those that its keys name.
            with global_states_kept(), mode("off"):
                seen = tagged(function(made), is_rows=True)
        except Exception:  # the module may not take such a batch
            has_failed = True
        finally:
            if kept is not None:
                kept.restore()
        run.finish_check(seen, has_failed)
        asked = _next_check(run)
    return True


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
