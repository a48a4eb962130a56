# SPDX-License-Identifier: Apache-2.0
"""Calls that torch.compile leaves to eager mode, since the keys of a block are not compiled.

This module is imported at need, since importing torch's compiler takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_REASON = (
    "the keys of a block, `with modcache.keys(ids):`, are not compiled; a module that is cached "
    'with key="ids", an argument, compiles with ids'
)


@torch.compiler.disable(reason=_REASON)  # type: ignore[no-untyped-call, untyped-decorator]
def in_eager_mode(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)
