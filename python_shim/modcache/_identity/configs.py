# SPDX-License-Identifier: Apache-2.0
"""How a walk reads what transformers writes into a model's configuration while it is in use.

A checkpoint of the Trainer notes the model's class and dtype there, and a classifier's first loss
the kind of its labels, beside their names. An encoder inside reads none of them, and is the same
as before, and as under another classifier.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch

from modcache._code.names import top_package
from modcache._identity.kinds import Aside
from modcache._identity.records import ClassRecord, codes_among

_CONFIGS = frozenset({"PreTrainedConfig", "PretrainedConfig"})
# Names by which code may read all attributes of a configuration.
_READ_ALL = frozenset({"vars", "__dict__", "to_dict", "to_diff_dict", "to_json_string"})
# A module that computes a loss mentions one of these in its forward.
_OF_LOSSES = frozenset({"problem_type", "loss_function", "loss", "labels", "label"})
_NOTHING: frozenset[str] = frozenset()


class Note(Aside):
    """A leaf: one such attribute. Equal ones are one object."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text

    def tokens_in(self, leaves: list[object]) -> tuple[str | bytes, ...]:
        names, may_be_read_inside = _NOTED[self._name]
        may_be_read = _is_mentioned(names, leaves) or may_be_read_inside(leaves)
        return ("note", self._name, self._text) if may_be_read else ()


def noted_in(kind: type) -> frozenset[str]:
    """Returns the names of such attributes of objects of exactly this class."""
    known = _known.get(kind)
    if known is None:
        is_config = any(
            base.__qualname__ in _CONFIGS and top_package(base.__module__) == "transformers"
            for base in kind.__mro__
        )
        known = _known[kind] = frozenset(_NOTED) if is_config else _NOTHING
    return known


def note_of(name: str, value: Any) -> Note | None:
    """Returns the leaf; None for a value of another type than transformers writes."""
    if isinstance(value, torch.dtype):
        text = str(value).removeprefix("torch.")
    elif type(value) is str:
        text = value
    elif value is None or all(type(item) in (int, str) for item in _items_of(value)):
        text = repr(value)
    else:
        return None
    return _notes.setdefault((name, text), Note(name, text))


def _items_of(value: object) -> Iterable[object]:
    if type(value) is dict:
        return chain(*value.items())
    return value if type(value) is list else (None,)


def _is_mentioned(names: frozenset[str], leaves: Iterable[object]) -> bool:
    """Whether code of the user's may read it."""
    return any(not (names | _READ_ALL).isdisjoint(code.names) for _, code in codes_among(leaves))


def _computes_loss(leaves: Iterable[object]) -> bool:
    classes = (leaf.named.cls() for leaf in leaves if isinstance(leaf, ClassRecord))
    return any(not _OF_LOSSES.isdisjoint(_names_in_forward(cls)) for cls in classes)


def _names_in_forward(cls: Any) -> Iterable[str]:
    function: Any = getattr(cls, "forward", None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return (*code.co_names, *code.co_varnames) if isinstance(code, types.CodeType) else _OF_LOSSES


def _never(leaves: Iterable[object]) -> bool:
    return False


# A name has the names by which code reads it, and whether transformers' own code among leaves may.
_NOTED: dict[str, tuple[frozenset[str], Callable[[Iterable[object]], bool]]] = {
    "architectures": (frozenset({"architectures"}), _never),
    "dtype": (frozenset({"dtype", "torch_dtype"}), _never),
    "id2label": (frozenset({"id2label", "num_labels"}), _computes_loss),
    "label2id": (frozenset({"label2id"}), _computes_loss),
    "problem_type": (frozenset({"problem_type"}), _computes_loss),
}
_known: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()
_notes: weakref.WeakValueDictionary[tuple[str, str], Note] = weakref.WeakValueDictionary()
