# SPDX-License-Identifier: Apache-2.0
"""Who makes samples: the scope of a dataset, or of a function that decodes.

It is made from the code of its class and of all that this reaches, and from every attribute, as
an eager module's fingerprint is; files that it names are not read.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import weakref
from collections.abc import Iterable
from multiprocessing import context
from typing import Any

import torch

from modcache._dataset_variants import Variants
from modcache._digest import digest_of
from modcache._kinds import UnidentifiedError
from modcache._records import Records, same_objects
from modcache._walk import TENSOR_TYPES, Walk, same_leaves

# Lists from here on are hashed at once, and looked at in some places afterwards.
_LONG = 512
_PLACES = 64
_PLACES_INSIDE = 16  # of each list, tuple or dict that lies there
_MOST_SAMPLED = 4096
_LARGE_BYTES = 1 << 16
_DEEPEST = 8
_ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})
_MOST_KNOWN = 256
_Sample = tuple[object, list[object]]  # compared by value, and by identity


class CachedSamples:
    """A cached dataset, as one that another dataset reads from sees it."""

    _key: Any
    _variants: Variants

    @property
    def scope(self) -> str:
        """Raises TypeError: no scope can be made."""
        raise NotImplementedError

    def identity(self) -> tuple[object, ...]:
        """What another dataset that reads from this one has of it in its own scope.

        Raises:
            TypeError: no scope can be made.
        """
        return ("cached", self.scope, self._key, self._variants.count, self._variants.seed)


class SampleMaker:
    """The objects that make samples, looked at before every look-up.

    What is changed from outside gives another scope. What their own runs change (counters, files
    opened when first needed) does not: ``note_run`` says that they have run. Used by one thread at
    a time. Copies find their scope anew; only what is sent to a worker process takes it along.
    """

    def __init__(self, objects: tuple[object, ...]) -> None:
        self._objects = objects
        self._begin("")

    def _begin(self, scope: str) -> None:
        self._scope = scope
        self._records = Records()
        self._digests = _Digests()
        self._watch = _Watch()
        self._seen: _Sight | None = None

    def scope(self) -> str:
        """32 hexadecimal digits.

        Raises:
            UnidentifiedError: something that cannot be hashed.
        """
        sight = self._look()
        if sight is None or (self._seen is not None and not sight.is_like(self._seen)):
            self._scope = ""
        if not self._scope:
            self._scope = self._hashed()
        self._seen = sight
        return self._scope

    def note_run(self) -> None:
        self._seen = self._look()
        if self._seen is None:  # what it was made of cannot be told from what it is now
            self._scope = ""
        elif torch.is_grad_enabled() and self._seen.requires_grad:
            self._watch.suspect()  # a fused optimizer step leaves no trace but new bytes

    def _look(self) -> _Sight | None:
        """None: too large or too deep to be looked at."""
        try:
            walk = _MakerWalk(self._objects, self._records, self._digests, is_tolerant=True)
        except UnidentifiedError:
            return None
        return _Sight(walk.leaves, walk.tensors, self._watch)

    def _hashed(self) -> str:
        walk = _MakerWalk(self._objects, self._records, self._digests, is_tolerant=False)
        if walk.scripted:
            raise UnidentifiedError("it holds a scripted module")
        text = f"dataset/{digest_of(walk.leaves)}/{self._watch.digest(walk.tensors)}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        is_for_worker = context.get_spawning_popen() is not None
        return {"objects": self._objects, "scope": self.scope() if is_for_worker else ""}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._objects = state["objects"]
        self._begin(state["scope"])
        if self._scope:  # what a worker's own code changes from now on gives another scope
            self._seen = self._look()


class _Watch:
    """The library's watch over the tensors of one maker, for as long as this lives."""

    def __init__(self) -> None:
        self._number = int(torch.ops.cache._watch())
        weakref.finalize(self, torch.ops.cache._unwatch, self._number).atexit = False

    def digest(self, tensors: list[torch.Tensor]) -> str:
        """Of their contents. Hashes what may have changed since the last time.

        Raises:
            UnidentifiedError: one of them cannot be hashed.
        """
        try:
            return str(torch.ops.cache._tensors_digest(self._number, tensors))
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).split("\n", 1)[0].removeprefix("modcache: ")
            raise UnidentifiedError(reason) from None

    def suspect(self) -> None:
        """The next digest reads every byte."""
        torch.ops.cache._refresh(self._number)


class _Sight:
    """What one look found."""

    def __init__(self, leaves: list[object], tensors: list[torch.Tensor], watch: _Watch) -> None:
        self.requires_grad = any(tensor.requires_grad for tensor in tensors)
        self._leaves = leaves
        self._contents = watch.digest([tensor for tensor in tensors if _is_hashable(tensor)])
        # Only a run can have put them there: the scope's own walk refuses them.
        self._others = [tensor for tensor in tensors if not _is_hashable(tensor)]
        self._versions = [None if t.is_inference() else t._version for t in self._others]

    def is_like(self, other: _Sight) -> bool:
        return (
            self._contents == other._contents
            and same_objects(self._others, other._others)
            and self._versions == other._versions
            and (
                same_leaves(self._leaves, other._leaves)
                # Others may mean the same: pickling leaves its marks on classes, for instance.
                or digest_of(self._leaves) == digest_of(other._leaves)
            )
        )


def _is_hashable(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in TENSOR_TYPES
        and tensor.layout == torch.strided
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)
    )


class _MakerWalk(Walk):
    """A walk over any objects; the attribute that cannot be hashed is named in errors."""

    refuses_outdated = False  # it would be the program that fails

    def __init__(
        self,
        objects: tuple[object, ...],
        records: Records,
        digests: _Digests,
        *,
        is_tolerant: bool,
    ) -> None:
        self._digests = digests
        super().__init__(objects, records, is_tolerant=is_tolerant)  # type: ignore[arg-type]

    def _module(self, module: object) -> None:
        if isinstance(module, torch.nn.Module):
            super()._module(module)
        else:
            self.value(module)

    def value(self, value: Any) -> None:
        digest = self._digests.of(value)
        if digest:
            self.leaves.append(digest)
        elif isinstance(value, CachedSamples):
            try:
                super().value(value.identity())
            except TypeError as error:
                raise UnidentifiedError(str(error)) from None
        else:
            super().value(value)

    def attributes(self, value: Any) -> None:
        held = dict(getattr(value, "__dict__", {}))
        if isinstance(value, tuple) or not held:
            super().attributes(value)
            return
        self.named_class(type(value))
        for name in sorted(held):
            self.leaves.append(name)
            self._owned(type(value).__qualname__, name, held[name])


class _Digests:
    """Text for long lists of plain values and for large arrays: hashed once, not at every look.

    A later look compares identity, length, and some items or bytes spread over the whole.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, _Sample, str]] = {}

    def of(self, value: Any) -> str:
        """Empty for what is not of that kind, and has to be looked at piece by piece."""
        if type(value) in (list, tuple, dict):
            if len(value) < _LONG:
                return ""
            sample = _sample_of_items(value)
        elif _is_large_array(value):
            place = (value.shape, str(value.dtype), value.ctypes.data)
            sample = ((place, _sampled_bytes(value)), [])
        else:
            return ""
        known = self._known.get(id(value))
        if known is not None and known[0] is value and _is_same(known[1], sample):
            return known[2]
        digest = _digest_of_array(value) if _is_large_array(value) else _digest_of_list(value)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id(value)] = (value, sample, digest)
        return digest


def _is_same(one: _Sample, other: _Sample) -> bool:
    return one[0] == other[0] and same_objects(one[1], other[1])


def _sample_of_items(value: Any) -> _Sample:
    """Items spread over the whole, and over each list, tuple or dict among them.

    They are kept themselves: an id alone comes back under another object.
    """
    shapes: list[object] = []
    items: list[object] = []
    level, places = [value], _PLACES
    while level and len(items) < _MOST_SAMPLED:
        found = list(itertools.chain.from_iterable(_spread(part, places) for part in level))
        shapes += [(type(part), len(part)) for part in level]
        items += found
        level, places = [part for part in found if type(part) in _CONTAINERS], _PLACES_INSIDE
    return shapes, items


def _spread(value: Any, places: int) -> list[object]:
    step = len(value) // places + 1
    if type(value) is not dict:
        return list(value[::step])
    return list(itertools.chain.from_iterable(itertools.islice(value.items(), 0, None, step)))


def _digest_of_list(value: Any) -> str:
    items: Any = list(value.items()) if type(value) is dict else value
    if not _is_plain(items):
        return ""
    hasher = hashlib.blake2b(digest_size=16)
    for start in range(0, len(items), 4096):
        hasher.update(repr(items[start : start + 4096]).encode())
    return f"{type(value).__name__} of {len(items)}: {hasher.hexdigest()}"


def _is_plain(items: Iterable[Any]) -> bool:
    """Whether they are atoms, or lists, tuples and dicts of atoms: what repr tells apart."""
    level = items
    for _ in range(_DEEPEST):
        kinds = set(map(type, level))
        if kinds <= _ATOMS:
            return True
        if not kinds <= _ATOMS | _CONTAINERS:
            return False
        inside = (item for item in level if type(item) in _CONTAINERS)
        level = list(itertools.chain.from_iterable(map(_content_of, inside)))
    return False


def _content_of(value: Any) -> Iterable[Any]:
    return itertools.chain(value, value.values()) if type(value) is dict else value


def _is_large_array(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return (
        numpy is not None
        and type(value) is numpy.ndarray
        and value.nbytes >= _LARGE_BYTES
        and not value.dtype.hasobject
    )


def _sampled_bytes(array: Any) -> bytes:
    flat = array.ravel(order="K") if array.flags.forc else array.flat
    return bytes(flat[:: array.size // _PLACES + 1].tobytes())


def _digest_of_array(array: Any) -> str:
    import numpy

    # Not by the buffer protocol, which has no dates and no views of structures.
    flat: Any = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
    digest = hashlib.blake2b(flat, digest_size=16)
    return f"array {array.dtype.str} {array.dtype} {array.shape}: {digest.hexdigest()}"
