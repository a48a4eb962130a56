# SPDX-License-Identifier: Apache-2.0
"""Objects that their classes and attributes do not describe: streams, locks, what C keeps."""

from __future__ import annotations

import io
import random
import sys
import threading
import types
from collections import deque
from typing import Any

import torch

from modcache._code.objects import is_a
from modcache._identity.plain import SCALARS

_IS_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
_PLAIN_BASES = (object, types.SimpleNamespace, dict, list, tuple, set, frozenset, deque, *SCALARS)
_RANDOM = "has a random state, which is another one after each draw"
_REASONS: tuple[tuple[Any, str], ...] = (
    ((torch.Generator, random.Random), _RANDOM),
    (
        (type(threading.Lock()), type(threading.RLock()), threading.local),
        "belongs to this process, and has no value that another process could compare",
    ),
    (io.IOBase, "is a file or stream, whose content no fingerprint covers"),
)


def why_unseen(value: object) -> str:
    """Says why an object is not described by its class and its attributes; "": it is."""
    kind = type(value)
    if reason := next((text for bases, text in _REASONS if is_a(value, bases)), ""):
        return reason
    if kind is object:
        return "is told apart by its address alone, which differs in each process"
    if str(kind.__module__).startswith("numpy.random."):
        return _RANDOM
    return "holds state that Python cannot see" if any(map(_is_opaque, kind.__mro__)) else ""


def _is_opaque(base: type) -> bool:
    """Whether objects of this class may hold state that is neither in their dict nor in slots."""
    if base in _PLAIN_BASES:
        return False
    if not base.__flags__ & _IS_HEAP_TYPE or type(base).__name__ == "pybind11_type":
        return True
    slots = vars(base).get("__slots__", ())
    count = 1 if isinstance(slots, str) else len(tuple(slots))
    solid = max((parent.__basicsize__ for parent in base.__bases__), default=0)
    if base.__basicsize__ > solid + 8 * (count + 2):
        return True
    module = sys.modules.get(base.__module__)
    spec = getattr(module, "__spec__", None)
    origin = str(getattr(spec, "origin", None) or "")
    return base.__module__ == "builtins" or origin == "built-in" or origin.endswith((".so", ".pyd"))
