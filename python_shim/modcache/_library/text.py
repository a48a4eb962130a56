# SPDX-License-Identifier: Apache-2.0
"""Checks of a caller's text, with better messages than those of torch's own matcher."""

from __future__ import annotations

import json
import operator
from numbers import Integral
from typing import Any

# A valid value of each argument that many functions take.
_EXAMPLES = {
    "key": '"image-000017"',
    "method": '"forward"',
    "mode": '"off"',
    "scope": '"clip-vit-b32@3"',
}


def checked_text(value: object, what: str, example: str = "", kinds: str = "a str") -> str:
    """Returns ``value`` as a plain str that can be encoded as UTF-8.

    Args:
        value: what the caller gave.
        what: the argument's name, for the message.
        example: a valid value, for the message; the default is one for the argument ``what``.
        kinds: the types that the caller takes, for the message.

    Raises:
        TypeError: not a str.
        ValueError: a str with lone surrogates, which no UTF-8 text can hold.
    """
    if not isinstance(value, str):
        raise TypeError(
            f"{what} must be {kinds}, but got {type(value).__name__}: {_shown(value)}. "
            f"Pass text, for instance {example or _EXAMPLES[what]}."
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} must be valid Unicode, but got {_shown(value)}: the character at position "
            f"{error.start} is a lone surrogate. Bytes that are no text (file names, for instance) "
            "can be written as hexadecimal digits: os.fsencode(name).hex()."
        ) from None
    return str.__str__(value)  # str() of a (str, Enum) would be its name


_BYTES = 0x10FF00  # of the library's text form of paths: characters for bytes that are no text
_SURROGATES = 0xDC00  # of Python's: PEP 383
_AS_TEXT = {_SURROGATES + byte: _BYTES + byte for byte in range(0x80, 0x100)}
_AS_PATH = {character: surrogate for surrogate, character in _AS_TEXT.items()}


def text_of_path(path: str) -> str:
    """Returns a path as the library takes it: valid Unicode, even if the path's bytes are not."""
    return path.translate(_AS_TEXT)


def path_of_text(text: str) -> str:
    """Returns a path of the library as Python's functions take it."""
    return text.translate(_AS_PATH)


TupleKey = tuple[str | int, ...]
_TUPLE_MARK = "\x1f"  # the unit separator, which ASCII has for such a purpose
_TEXTS = (str, bytes, bytearray)
FIRST_ID, LAST_ID = -(2**63), 2**63 - 1


def is_one_key(keys: object) -> bool:
    """Whether a tuple is one key: it mixes text and integers. Any other holds a key for each row.

    >>> is_one_key(("video", 3)), is_one_key(("a", "b")), is_one_key((1, 2))
    (True, False, False)
    """
    if not isinstance(keys, tuple):
        return False
    texts = sum(isinstance(part, _TEXTS) for part in keys)
    return 0 < texts < len(keys) and all(isinstance(part, _TEXTS) or _is_int(part) for part in keys)


def checked_key(key: object, what: str) -> str:
    """Returns the text of one key: a str, bytes in UTF-8, or a tuple of text and integers.

    Raises:
        TypeError, ValueError: as ``checked_text``, ``text_of_bytes`` and ``text_of_tuple_key``.
    """
    if isinstance(key, tuple):
        return text_of_tuple_key(key, what)
    if isinstance(key, (bytes, bytearray)):
        return text_of_bytes(key, what)
    return checked_text(key, what, _EXAMPLES["key"])


def key_text(key: object, what: str) -> str:
    """Returns the text of the key of one sample: as ``checked_key``, or an integer of any type.

    Raises:
        TypeError: another type.
        ValueError: text that is not valid Unicode.
    """
    if isinstance(key, (tuple, *_TEXTS)):
        return checked_key(key, what)
    if not isinstance(key, bool):
        try:
            return str(operator.index(key))  # type: ignore[arg-type]
        except TypeError:
            pass
    return checked_text(key, what, _EXAMPLES["key"], "a str or an int")


def check_id(number: int, what: str) -> None:
    """Raises ValueError if the number is not an int64."""
    if not FIRST_ID <= number <= LAST_ID:
        raise ValueError(
            f"{what} is {_shown(number)}, which is not an int64: ids have at most 64 bits. "
            "Pass all keys as text: str(id)."
        )


def text_of_bytes(key: bytes | bytearray, what: str) -> str:
    """Returns bytes as the text that they are in UTF-8. Raises ValueError if they are not."""
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{what} is bytes that are not valid UTF-8 (at position {error.start}): "
            f"{_shown(bytes(key))}. Keys are text: pass the digits of the bytes, key.hex()."
        ) from None


def text_of_tuple_key(key: TupleKey, what: str) -> str:
    r"""Returns the text that a key of text and integers is stored under: a mark, and JSON.

    ``what``: names the key, for messages.

    Raises:
        TypeError: it holds something else. ValueError: it is empty, or a text is no valid Unicode.

    >>> text_of_tuple_key(("video", 3), "key")
    '\x1f["video",3]'
    """
    if not key:
        raise ValueError(f'{what} is an empty tuple; give each sample a key, as ("video", 3).')
    parts = [_part_of_tuple_key(part, f"{what}[{place}]") for place, part in enumerate(key)]
    return _TUPLE_MARK + json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def _part_of_tuple_key(part: Any, what: str) -> str | int:
    if _is_int(part):
        return int(part)
    if isinstance(part, (bytes, bytearray)):
        return text_of_bytes(part, what)
    return checked_text(part, what, '"video"', "a str or an int")


def _is_int(part: Any) -> bool:
    """Whether it is an int or an integer of NumPy, but no bool."""
    return type(part) is int or (isinstance(part, Integral) and not isinstance(part, int))


def is_unicode(text: str) -> bool:
    """Whether a str has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def first_line(error: Exception) -> str:
    """Returns the message of the library's error, without the function's name and the trace."""
    text = str(error).split("\n", 1)[0]
    for prefix in ("modcache: ", "modcache.lazy: ", "cache::lookup_or_run: "):
        text = text.removeprefix(prefix)
    return text


def with_article(name: str) -> str:
    """Puts an article before the name of a class.

    >>> with_article("int"), with_article("dict")
    ('an int', 'a dict')
    """
    return f"{'an' if name[:1] in set('aeiouAEIO') else 'a'} {name}"


def _shown(value: object) -> str:
    """Returns a short, printable form of ``value``."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
