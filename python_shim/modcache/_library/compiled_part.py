# SPDX-License-Identifier: Apache-2.0
"""The part of this package that is compiled with Python's headers, if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["guards"]

if TYPE_CHECKING:
    from modcache import _guards as guards
else:
    try:
        from modcache import _guards as guards
    except ImportError:  # the library was built without Python's headers
        guards = None
