# SPDX-License-Identifier: Apache-2.0
"""Checks of a caller's text, with better messages than those of torch's own matcher."""

from __future__ import annotations

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
