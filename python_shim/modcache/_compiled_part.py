# SPDX-License-Identifier: Apache-2.0
"""The part of this package that is compiled with Python's headers, where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

__all__ = ["guards", "may_recall"]

if TYPE_CHECKING:
    from modcache import _guards as guards
else:
    try:
        from modcache import _guards as guards
    except ImportError:  # a library that was built without Python's headers
        guards = None


def _never() -> bool:
    return False


may_recall: Callable[[], bool] = _never if guards is None else guards.may_recall
"""Whether this thread's mode lets a stored value be returned without running anything."""
if guards is not None:
    guards.connect(torch.ops.cache._may_recall_address())
