# SPDX-License-Identifier: Apache-2.0
"""Cached calls whose keys come from a block, ``with modcache.keys(ids):``.

In one block and part, all calls of one module have the same keys. So a second one with other
tensors would be given what the first one stored, and is an error. A call is compared by its
tensors, arrays and images, also those in objects of known classes: other values are part of the
address, and objects of unknown classes are told by who they are.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from modcache._call import eager
from modcache._call.arguments import Arguments, PerRow
from modcache._call.bypass import way_of
from modcache._call.carriers import is_array, is_image
from modcache._call.content import content_key
from modcache._call.evaluation import record_function
from modcache._call.function import call_name_of
from modcache._call.inputs import shown
from modcache._call.key_block import Block, Keys, current, is_in_backward
from modcache._call.registered import attributes_of, taken_apart
from modcache._code.tokens import ATOMS
from modcache._identity.manifest import class_name
from modcache._identity.module_state import state_of
from modcache._identity.wrappers import identified_as
from modcache._lazy.model import Lazy
from modcache._library.mode import mode
from modcache._library.tracing import untraced
from modcache._lookup.lookup import fingerprint, lookup_or_run

OUTSIDE = (
    "outside of any `with modcache.keys(ids):` block, where what is cached without a key has none"
)
_WRONG_COUNT = " keys were given, but a tensor of the input has the shape "
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_TAKEN_ELSEWHERE = (Arguments, tuple, list, dict)
# Modules of one class whose fingerprints were seen to differ.
_told_apart: weakref.WeakKeyDictionary[torch.nn.Module, weakref.WeakSet[torch.nn.Module]] = (
    weakref.WeakKeyDictionary()
)


def looked_up_in_block(
    module: torch.nn.Module, input: Any, scope: str, method: str, rows: dict[str, Any]
) -> Any:
    """Looks up under the keys of the block around; outside of any, runs uncached.

    A replay in a backward pass runs plainly: it is a part of that pass, and is not counted.

    ``rows``: see ``Way.rows``.

    Raises:
        ValueError: also, the call is a second one in its block.
        RuntimeError: also, under torch.export.
        The errors of ``modcache.lookup_or_run``.
    """
    if not torch.compiler.is_compiling():
        return _looked_up(module, input, scope, method, rows)
    if torch.compiler.is_exporting():
        raise RuntimeError(
            "modcache: a module that is cached without a key cannot be exported, since the keys "
            'of modcache.keys would become a part of the program; cache it with key="ids", an '
            "argument, or export the plain module."
        )
    names: tuple[str, ...] = ()
    is_as_called = False
    if isinstance(input, Arguments):
        names, is_as_called = input.names, input.is_as_called
        input = tuple(input)  # noqa: A001
    from modcache._cached.eager_mode import in_eager_mode

    return in_eager_mode(_looked_up_again, module, input, names, is_as_called, scope, method, rows)


def _looked_up_again(
    module: torch.nn.Module,
    input: Any,
    names: tuple[str, ...],
    is_as_called: bool,
    scope: str,
    method: str,
    rows: dict[str, Any],
) -> Any:
    sample = Arguments.of(input, names, is_as_called) if names or is_as_called else input
    return _looked_up(module, sample, scope, method, rows)


def _looked_up(
    module: torch.nn.Module, input: Any, scope: str, method: str, rows: dict[str, Any]
) -> Any:
    block = current()
    if is_in_backward() or (block is not None and block.is_suspended):
        return eager.run_plain(module, input, method)
    target = identified_as(module)
    if block is None or block.keys is None:
        record_function(state_of(target), target, method)  # for calls in mode `off`
        return eager.run_uncached(module, input, "none", method, OUTSIDE)
    if way_of(module, input)[0] or mode() == "off":
        return _with_keys(block.keys, module, input, scope, method, rows)
    who = call_name_of(module, method)
    group = (scope or class_name(target), bool(scope), method, block.parts)
    earlier: list[_SeenCall] = block.calls.setdefault(group, [])
    this = _SeenCall(target, input)
    is_known = False
    for call in earlier:
        if this.has_input_of(call):
            is_known = is_known or call.target is target
        elif (
            (scope or _may_be_one(target, call.target, method))
            and call.is_readable
            and this.is_readable
        ):
            raise _second_call(who, block)
    value = _with_keys(block.keys, module, input, scope, method, rows)
    if not is_known:
        earlier.append(this)
    return value


def _with_keys(
    keys: Keys, module: torch.nn.Module, input: Any, scope: str, method: str, rows: dict[str, Any]
) -> Any:
    """Looks up under the keys of a block, which the error of a wrong number of keys mentions."""
    try:
        return lookup_or_run(module, input, keys, scope=scope, method=method, **rows)
    except ValueError as error:
        if _WRONG_COUNT in str(error):
            error.add_note(
                "The keys are those of the block `with modcache.keys(...):` around the call of "
                f"{call_name_of(module, method)}. Where a pipeline doubles its batch (prompt and "
                "negative prompt), cache what runs before that, or open a block with the keys of "
                "all rows."
            )
        raise


def _second_call(who: str, block: Block) -> ValueError:
    place = f" and part {block.parts[-1]!r}" if block.parts else ""
    return ValueError(
        f"{who} is called a second time, with another input, in one block of modcache.keys{place}. "
        "Both calls would have the same keys, and so be given the same entries. Name one of them: "
        '`with modcache.keys(part="negative"):` around the call. (Other inputs of the same samples '
        "are parts. For other samples open a block with their keys.)"
    )


def _may_be_one(target: torch.nn.Module, other: torch.nn.Module, method: str) -> bool:
    """Whether two modules of one class may have the same entries, as copies have."""
    if target is other or target.__dict__ is other.__dict__:
        return True
    try:
        if other in _told_apart.setdefault(target, weakref.WeakSet()):
            return False
        is_one = _address(target, method) == _address(other, method)
    except TypeError:  # one cannot be identified, and so is not cached
        return False
    if not is_one:
        _told_apart[target].add(other)
    return is_one


def _address(target: torch.nn.Module, method: str) -> str:
    if isinstance(target, Lazy):
        return target._source.address(method)
    return fingerprint(target, method=method)


class _SeenCall:
    """A call to be compared with later ones. It holds its input until the block is left."""

    def __init__(self, target: torch.nn.Module, input: Any) -> None:
        self.target = target
        self._input = input
        with untraced():
            self._kept = [_Kept(leaf) for leaf in _leaves(input)]

    @functools.cached_property
    def is_readable(self) -> bool:
        """Whether its input is one that can be looked up."""
        return not shown(self._input).refusal

    def has_input_of(self, earlier: _SeenCall) -> bool:
        """Whether both have the same tensors in order, and objects other than plain values."""
        if len(self._kept) != len(earlier._kept):
            return False
        with untraced(), torch.no_grad():
            return all(map(_Kept.is_as, self._kept, earlier._kept))


class _Kept:
    """A leaf of an input as it was at a call.

    A tensor is identified by its version, which each write counts. Tensors of inference mode have
    none, so a copy is kept of them. Arrays and images are identified by their content key, since
    nothing counts writes to them.
    """

    def __init__(self, leaf: Any) -> None:
        self._leaf = leaf
        self._version = -1
        self._content = ""
        if is_array(leaf) or is_image(leaf):
            with contextlib.suppress(Exception):  # no call with what cannot be read is cached
                self._content = content_key(leaf)
        elif isinstance(leaf, torch.Tensor) and leaf.is_inference():
            self._leaf = leaf.clone()
        elif isinstance(leaf, torch.Tensor):
            self._version = leaf._version

    def is_as(self, earlier: _Kept) -> bool:
        if not isinstance(self._leaf, torch.Tensor) or not isinstance(earlier._leaf, torch.Tensor):
            if self._content and earlier._content:
                return self._content == earlier._content
            return self._leaf is earlier._leaf
        if earlier._version >= 0 and earlier._leaf._version != earlier._version:
            return False  # written to since: nobody knows what it was
        if self._leaf is earlier._leaf:
            return True
        return _is_equal(self._leaf, earlier._leaf)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bytes; False also where that cannot be told."""
    if not (_is_readable(one) and _is_readable(other)):
        return False
    if (one.dtype, one.shape, one.device) != (other.dtype, other.shape, other.device):
        return False
    if one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and (
        one.storage_offset() == other.storage_offset() and one.stride() == other.stride()
    ):
        return True
    return torch.equal(_bytes_of(one), _bytes_of(other))


def _is_readable(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in _PLAIN
        and tensor.layout == torch.strided
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_meta)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def _parts_of_object(value: Any) -> list[Any] | None:
    """Takes apart what the address has by its parts; None: that is done elsewhere, or never."""
    kind = type(value)
    if kind in _TAKEN_ELSEWHERE or kind in ATOMS or isinstance(value, torch.Tensor):
        return None
    if is_array(value) or is_image(value) or (apart := taken_apart(value)) is None:
        return None
    return apart.parts


def _leaves(value: Any) -> Iterator[Any]:
    """Finds tensors and objects; plain values are part of the address, and count there."""
    if type(value) is Arguments and value.told is not None:
        value = value.told  # ignored arguments tell no calls apart
    if isinstance(value, PerRow):
        value = value.items
    elif (parts := _parts_of_object(value)) is not None:
        value = parts
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, Mapping):
        own = attributes_of(value).values() if isinstance(value, UserDict) else ()
        for part in (*value.values(), *own):
            yield from _leaves(part)
    elif not _is_plain(value):
        yield value


def _is_plain(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return type(value) in ATOMS or (numpy is not None and isinstance(value, numpy.generic))
