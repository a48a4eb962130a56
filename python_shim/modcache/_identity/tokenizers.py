# SPDX-License-Identifier: Apache-2.0
"""How a walk reads Hugging Face's tokenizers, which are objects of Rust.

Their pickled form describes them in full. A tokenizer of transformers sets padding and truncation
of the one of Rust at each of its calls, so these are no part of its identity, and a first call
changes nothing. They count where code of the user's, or of another package, mentions the one of
Rust itself, also as text.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from modcache._code.names import plain_name, top_package
from modcache._code.tokenizer_backends import BACKEND_NAMES
from modcache._identity.kinds import NAMED, Aside, UnidentifiedError
from modcache._identity.records import codes_among
from modcache._identity.scratch import BACKEND, is_tokenizer

if TYPE_CHECKING:
    from modcache._identity.walk import Walk

_FIND_ALL = frozenset({"vars", "__dict__"})
_AFTER_SETTINGS = b',"added_tokens":['  # no text in the JSON of a tokenizer contains it


class Settings(Aside):
    """A leaf: padding and truncation. Equal ones are one object."""

    def __init__(self, digest: bytes) -> None:
        self._digest = digest

    def tokens_in(self, leaves: list[object]) -> tuple[str | bytes, ...]:
        return ("settings", self._digest) if settings_matter(leaves) else ()


_settings: weakref.WeakValueDictionary[bytes, Settings] = weakref.WeakValueDictionary()


def way_of_tokenizer(kind: type) -> Callable[[Walk, Any], None] | None:
    """Finds the function that reads values of exactly this type; None for other types."""
    if is_tokenizer(kind):
        return _tokenizer
    is_of_rust = top_package(kind.__module__) == "tokenizers" and "__getstate__" in vars(kind)
    return _of_rust if is_of_rust else None


def settings_matter(leaves: Iterable[object]) -> bool:
    """Whether code may read the settings without having them set."""
    return any(
        code.mentions_backend or not _FIND_ALL.isdisjoint(code.names)
        for _, code in codes_among(leaves)
    ) or any(
        leaf in BACKEND_NAMES if type(leaf) is str else getattr(leaf, "mentions_backend", False)
        for leaf in leaves
    )


def _tokenizer(walk: Walk, value: Any) -> None:
    walk._object(value)
    _read_backend(walk, vars(value).get(BACKEND), has_own_settings=False)


def _of_rust(walk: Walk, value: Any) -> None:
    _read_backend(walk, value, has_own_settings=True)


def _read_backend(walk: Walk, value: Any, *, has_own_settings: bool) -> None:
    if value is None:
        walk.leaves.append(None)
        return
    if walk.lenient is not None:
        raise UnidentifiedError("a tokenizer that a package holds")
    try:
        state = value.__getstate__()
    except Exception as error:  # parts that are written in Python
        name = plain_name(type(value))
        raise UnidentifiedError(f"a {name} cannot say what it is made of: {error}") from None
    walk.leaves += (NAMED, walk.named(type(value)))
    if not isinstance(state, bytes):
        walk.value(state)
        return
    end = 0 if has_own_settings else max(state.find(_AFTER_SETTINGS), 0)
    special = b"%d" % bool(getattr(value, "encode_special_tokens", False))
    walk.leaves.append(_digest(state[end:] + (special if has_own_settings else b"")))
    if end:
        digest = _digest(state[:end] + special)
        walk.leaves.append(_settings.setdefault(digest, Settings(digest)))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
