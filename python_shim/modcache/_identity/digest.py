# SPDX-License-Identifier: Apache-2.0
"""Digests the leaves of a walk, and finds what changed between two walks.

A digest leaves out the devices of tensors and modules (``torch.device``), and the flag ``training``
of a module where it cannot matter. The flag matters if the code of the module's own class mentions
the word. Once code from outside torch mentions it, the flag matters in every module, since that
code may read the flag of a child.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from modcache._code.reads import Code
from modcache._code.tokens import ATOMS, feed, tokens_of_atom
from modcache._identity.capturing import HOOKED, NOT_HOOKED, are_looked_at
from modcache._identity.kinds import NOT_TRAINING, TRAINING, Aside, Mark
from modcache._identity.records import ClassName, ClassRecord, ModuleRecord
from modcache._identity.scripted import ScriptRecord
from modcache._installed.distributions import Distribution

if TYPE_CHECKING:
    from modcache._identity.walk import Outline, Walk


@dataclass(eq=False)
class Part:
    """A leaf: what was found in packages, hashed before. A change makes another object."""

    digest: str
    mentions_training: bool
    mentions_backend: bool
    distributions: list[Distribution]

    def tokens(self) -> tuple[str, ...]:
        return ("whole", self.digest)


def digest_of(leaves: list[object]) -> str:
    """Returns 32 hexadecimal digits: equal for leaves that mean the same, in every process."""
    hasher = hashlib.blake2b(digest_size=16)
    feed(hasher, _tokens(leaves))
    return hasher.hexdigest()


class _Classes:
    """Numbers classes in the order of their first mention.

    Every mention has the number, since classes may share a name, and code is hashed only once.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by the id of a ClassName, which the leaves hold

    def tokens_of(self, named: ClassName) -> list[str | bytes]:
        return ["type", named.plain, str(self._number_of(named))]

    def short_tokens_of(self, named: ClassName) -> list[str | bytes]:
        return [named.qualname, str(self._number_of(named))]

    def _number_of(self, named: ClassName) -> int:
        return self._numbers.setdefault(id(named), len(self._numbers))


def _tokens(leaves: list[object]) -> list[str | bytes]:
    records = {id(leaf.named): leaf for leaf in leaves if isinstance(leaf, ClassRecord)}
    asks_anywhere = any(
        (isinstance(leaf, (Code, Part)) and leaf.mentions_training)
        or (isinstance(leaf, ClassRecord) and leaf.code.mentions_training and not leaf.is_torch)
        for leaf in leaves
    )
    classes = _Classes()
    tokens: list[str | bytes] = []
    for leaf in leaves:
        if isinstance(leaf, (Part, Distribution, ScriptRecord)):
            tokens += leaf.tokens()
        elif isinstance(leaf, Aside):
            tokens += leaf.tokens_in(leaves)
        elif isinstance(leaf, ModuleRecord):
            asks = asks_anywhere or records[id(leaf.named)].code.mentions_training
            tokens += ("module", *classes.short_tokens_of(leaf.named))
            tokens += _tokens_of_module(leaf, asks)
        elif isinstance(leaf, ClassRecord):
            tokens += ("code of", *classes.short_tokens_of(leaf.named), leaf.code.digest)
        elif isinstance(leaf, Code):
            tokens += ("code", leaf.digest)
        elif isinstance(leaf, Mark):
            if _counts(leaf, leaves, asks_anywhere):
                tokens += ("mark", leaf.name)
        elif isinstance(leaf, ClassName):
            tokens += classes.tokens_of(leaf)
        else:
            tokens += _tokens_of_value(leaf)
    return tokens


def _counts(mark: Mark, leaves: list[object], training_matters: bool) -> bool:
    if mark in (TRAINING, NOT_TRAINING):
        return training_matters
    return mark is not NOT_HOOKED and (mark is not HOOKED or are_looked_at(leaves))


def _tokens_of_module(record: ModuleRecord, training_matters: bool) -> list[str | bytes]:
    tokens: list[str | bytes] = []
    for name, value in record.values().items():
        if name != "training" or training_matters:
            tokens += (name, *_tokens_of_value(value))
    for item in record.structure():
        tokens += ("has", item) if isinstance(item, str) else ("next",)
    return tokens


def _tokens_of_value(value: object) -> list[str | bytes]:
    if isinstance(value, tuple):
        return [
            "tuple",
            str(len(value)),
            *(token for item in value for token in _tokens_of_value(item)),
        ]
    assert type(value) in ATOMS, type(value)
    return list(tokens_of_atom(value))


def difference(before: Walk | Outline, after: Walk) -> str:
    """Returns a clause that names the first attribute in which two walks differ; "" for none.

    What installed packages keep for themselves may change during a run.
    """
    old, new = before.own_leaves(), after.own_leaves()
    for index, (was, now) in enumerate(zip(old, new, strict=False)):
        if was is now or (type(was) in ATOMS and _tokens_or_none(was) == _tokens_or_none(now)):
            continue
        if isinstance(was, ModuleRecord) and isinstance(now, ModuleRecord):
            name = _changed_name(was, now)
            if name:
                return f"attribute '{name}' of {was.named.qualname} changed"
            continue
        are_asides = isinstance(was, Aside) and isinstance(now, Aside)
        if are_asides and was.tokens_in(before.leaves) == now.tokens_in(after.leaves):  # type: ignore[attr-defined]
            continue
        if (was, now) == (NOT_HOOKED, HOOKED) and not are_looked_at(before.leaves):
            continue
        owner = after.owner_at(index) or before.owner_at(index)
        return f"attribute '{owner[1]}' of {owner[0]} changed" if owner else "its structure changed"
    if len(old) != len(new):
        return "its attributes changed"
    return ""


def _changed_name(was: ModuleRecord, now: ModuleRecord) -> str:
    if was.named is not now.named:
        return "__class__"
    old, new = was.values(), now.values()
    for name in sorted({*old, *new, *was.others, *now.others}):
        absent = object()
        before, after = old.get(name, absent), new.get(name, absent)
        if type(before) is not type(after) or _tokens_or_none(before) != _tokens_or_none(after):
            return name
        if (name in was.others) != (name in now.others):
            return name
    if was.structure() != now.structure():
        return str(
            next(iter(set(map(str, was.structure())) ^ set(map(str, now.structure()))), "_modules")
        )
    return ""


def _tokens_or_none(value: object) -> list[str | bytes] | None:
    return _tokens_of_value(value) if isinstance(value, tuple) or type(value) in ATOMS else None


def name_of_tensor(module: torch.nn.Module, walk: Walk, index: int) -> str:
    """Returns a clause that says where ``module`` holds tensor ``index`` of the walk."""
    if index in walk.tensor_owners:
        cls, name = walk.tensor_owners[index]
        return f"attribute '{name}' of {cls}"
    tensor = walk.tensors[index]
    for kind, named in (
        ("buffer", module.named_buffers()),
        ("parameter", module.named_parameters()),
    ):
        for name, candidate in named:
            if candidate is tensor:
                return f"{kind} '{name}' of {type(module).__qualname__}"
    return f"a tensor of {type(module).__qualname__}"
