# SPDX-License-Identifier: Apache-2.0
"""The scope of what makes samples: a dataset, or a function that decodes.

Like an eager module's fingerprint, it is made from the code of the class, from all that this code
reaches, and from every attribute. Files are not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from multiprocessing import context
from typing import TYPE_CHECKING, Any

import torch

from modcache._code.reads import MISSING
from modcache._data.stream_libraries import order_attributes, why_undecided
from modcache._data.variants import Variants
from modcache._identity.contents import TENSOR_TYPES, version_of, watched_digest
from modcache._identity.digest import digest_of
from modcache._identity.kinds import UnidentifiedError
from modcache._identity.plain import slots_of
from modcache._identity.records import Records, same_leaves, same_objects
from modcache._identity.walk import Walk

if TYPE_CHECKING:
    from modcache._data.lookup import SampleCache

# Longer lists are hashed once, and sampled afterwards.
_LONG = 512
_PLACES = 64
_PLACES_INSIDE = 16  # in each list, tuple or dict among the sampled items
_MOST_SAMPLED = 4096
_LARGE_BYTES = 1 << 16
_DEEPEST = 8
_ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})
_MOST_KNOWN = 256
_refresh_watch: Any = torch.classes.cache.Watch.refresh
_Sample = tuple[object, list[object]]  # one part is compared by value, one by identity


class CachedSamples:
    """What cached datasets have in common, also for another dataset that reads from one."""

    _key: Any
    _variants: Variants
    _cache: SampleCache

    @property
    def scope(self) -> str:
        """The scope of the entries, for ``modcache.contains`` and ``modcache.clear``."""
        return self._cache.scope()

    def set_epoch(self, epoch: int) -> None:
        """Sets the next epoch, which decides the variant of each sample.

        Call it in the training process, before the DataLoader's pass. All workers see it, also
        persistent ones.
        """
        self._variants.set_epoch(epoch)

    def identity(self) -> tuple[object, ...]:
        """Returns what the scope of another dataset that reads from this one contains of it.

        Raises:
            TypeError: no scope can be made.
        """
        return ("cached", self.scope, self._key, self._variants.count, self._variants.seed)


class SampleMaker:
    """The objects that make samples, checked before every look-up.

    A change from outside gives another scope. A change by their own runs (counters, files opened
    when first needed) does not: ``note_run`` says that they have run. One thread at a time may use
    this. Copies make their scope anew; only a copy that goes to a worker process keeps it.
    """

    def __init__(self, objects: tuple[object, ...], apart: object = None) -> None:
        """``apart``: an object with a scope of its own, which this one leaves out."""
        self._objects = objects
        self._apart = apart
        self._begin("")

    def _begin(self, scope: str) -> None:
        self._scope = scope
        self._records = Records()
        self._digests = _Digests()
        self._watch: Any = torch.classes.cache.Watch()
        self._seen: _SeenState | None = None

    def scope(self) -> str:
        """Returns 32 hexadecimal digits.

        Raises:
            UnidentifiedError: something that cannot be hashed.
        """
        seen = self._look()
        if seen is None or (self._seen is not None and not seen.is_like(self._seen)):
            self._scope = ""
        if not self._scope:
            self._scope = self._hashed()
        self._seen = seen
        return self._scope

    def note_run(self) -> None:
        self._seen = self._look()
        if self._seen is None:  # the objects as they are now do not give the scope
            self._scope = ""
        elif torch.is_grad_enabled() and self._seen.requires_grad:
            _refresh_watch(self._watch)  # a fused optimizer step leaves no trace but new bytes

    def _look(self) -> _SeenState | None:
        """Looks at the objects; None: they are too large or too deep."""
        try:
            walk = self._walk(is_tolerant=True)
        except UnidentifiedError:
            return None
        return _SeenState(walk.leaves, walk.tensors, self._watch)

    def _walk(self, *, is_tolerant: bool) -> _MakerWalk:
        return _MakerWalk(self, is_tolerant=is_tolerant)

    def _hashed(self) -> str:
        walk = self._walk(is_tolerant=False)
        if walk.scripted:
            raise UnidentifiedError("it holds a scripted module")
        text = f"dataset/{digest_of(walk.leaves)}/{watched_digest(self._watch, walk.tensors)}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        is_for_worker = context.get_spawning_popen() is not None
        scope = self.scope() if is_for_worker else ""
        return {"objects": self._objects, "apart": self._apart, "scope": scope}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._objects = state["objects"]
        self._apart = state["apart"]
        self._begin(state["scope"])
        if self._scope:  # later changes by the worker's own code give another scope
            self._seen = self._look()


class StreamMaker(SampleMaker):
    """A stream of raw samples, checked between the passes over it.

    A pass changes what the stream holds (counters, random states, buffers), which is no change from
    outside and would cost a look at each sample.
    """

    def _begin(self, scope: str) -> None:
        self._passes = 0
        super()._begin(scope)

    def scope(self) -> str:
        return self._scope if self._passes and self._scope else super().scope()

    @contextlib.contextmanager
    def in_pass(self) -> Iterator[None]:
        """Encloses a pass."""
        self.scope()
        self._passes += 1
        try:
            yield
        finally:
            self._passes -= 1
            if not self._passes and not sys.is_finalizing():
                self.note_run()

    def _walk(self, *, is_tolerant: bool) -> _MakerWalk:
        return _StreamWalk(self, is_tolerant=is_tolerant)


class _SeenState:
    """The outcome of one look."""

    def __init__(self, leaves: list[object], tensors: list[torch.Tensor], watch: Any) -> None:
        self.requires_grad = any(tensor.requires_grad for tensor in tensors)
        self._leaves = leaves
        hashable = [tensor for tensor in tensors if _is_hashable(tensor)]
        self._contents = watched_digest(watch, hashable)
        # A run must have put the others there, since the walk for the scope refuses them.
        self._others = [tensor for tensor in tensors if not _is_hashable(tensor)]
        self._versions = list(map(version_of, self._others))

    def is_like(self, other: _SeenState) -> bool:
        return (
            self._contents == other._contents
            and same_objects(self._others, other._others)
            and self._versions == other._versions
            and (
                same_leaves(self._leaves, other._leaves)
                # Other leaves may mean the same: pickling leaves marks on classes, for instance.
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
    """A walk over any objects. Errors name the attribute that cannot be hashed."""

    refuses_outdated = False  # refusing would fail the program

    def __init__(self, maker: SampleMaker, *, is_tolerant: bool) -> None:
        self._digests = maker._digests
        self._apart = maker._apart
        super().__init__(maker._objects, maker._records, is_tolerant=is_tolerant)  # type: ignore[arg-type]

    def _module(self, module: object) -> None:
        if isinstance(module, torch.nn.Module):
            super()._module(module)
        else:
            self.value(module)

    def value(self, value: Any) -> None:
        digest = self._digests.of(value)
        if digest:
            self.leaves.append(digest)
        elif value is self._apart and value is not None:
            self.leaves.append("apart")
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
        for name in sorted(held.keys() - self.skipped(value)):
            self.leaves.append(name)
            self._owned(type(value).__qualname__, name, held[name])
        for name in slots_of(type(value)):
            self.leaves.append(name)
            self._owned(type(value).__qualname__, name, getattr(value, name, MISSING))

    def skipped(self, value: Any) -> frozenset[str]:
        """Returns the names of attributes of an object that do not count."""
        return frozenset()


class _StreamWalk(_MakerWalk):
    """A walk over a stream, without what only decides which samples come, and when."""

    def skipped(self, value: Any) -> frozenset[str]:
        skipped = order_attributes(value)
        if not self._is_tolerant:
            for name, held in vars(value).items():
                if name not in skipped and (why := why_undecided(value, name, held)):
                    kind = type(value).__qualname__
                    raise UnidentifiedError(f"attribute '{name}' of {kind} is unclear: {why}")
        return skipped


class _Digests:
    """Digests of long lists of plain values and of large arrays, which are hashed only once.

    A later look compares identity, length, and some items or bytes spread over the whole.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, _Sample, str]] = {}

    def of(self, value: Any) -> str:
        """Returns the digest; "" for any other value, which has to be read piece by piece."""
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
    """Samples items spread over the whole, and over each list, tuple or dict among them.

    The sample keeps the items, since another object may get the id of a freed one.
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
    """Whether they are atoms, or lists, tuples and dicts of atoms, which repr tells apart."""
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

    # The buffer protocol has no dates and no views of structures.
    flat: Any = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
    digest = hashlib.blake2b(flat, digest_size=16)
    return f"array {array.dtype.str} {array.dtype} {array.shape}: {digest.hexdigest()}"
