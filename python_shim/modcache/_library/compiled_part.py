# SPDX-License-Identifier: Apache-2.0
"""The part of this package that is compiled with Python's headers, if there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

__all__ = ["guards", "may_take_fast_path"]

if TYPE_CHECKING:
    from modcache import _guards as guards
else:
    try:
        from modcache import _guards as guards
    except ImportError:  # the library was built without Python's headers
        guards = None


may_take_fast_path: Callable[[], bool] = (
    (lambda: False) if guards is None else guards.may_take_fast_path
)
"""Whether the mode of this thread allows to return a stored value without a run."""
if guards is not None:
    guards.connect(torch.classes.cache.Run.fast_path_is_open_address())
