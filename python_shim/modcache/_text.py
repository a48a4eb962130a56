# SPDX-License-Identifier: Apache-2.0
"""Checks of text that a caller gives: what torch's own matcher refuses without explaining."""

from __future__ import annotations


def checked_text(value: object, what: str, example: str, kinds: str = "a str") -> str:
    """``value`` as a plain str that can be encoded as UTF-8.

    Args:
        value: what the caller gave.
        what: the argument's name, for the message.
        example: a valid value, for the message.
        kinds: the types that the caller takes, for the message.

    Raises:
        TypeError: not a str.
        ValueError: a str with lone surrogates, which no UTF-8 text can hold.
    """
    if not isinstance(value, str):
        raise TypeError(
            f"{what} must be {kinds}, but got {type(value).__name__}: {_shown(value)}. "
            f"Pass text, for instance {example}."
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} must be valid Unicode, but got {_shown(value)}: the character at position "
            f"{error.start} is a lone surrogate. Bytes that are no text (file names, for instance) "
            "can be written as hexadecimal digits: os.fsencode(name).hex()."
        ) from None
    return str.__str__(value)  # of a (str, Enum) str() would be its name


def with_article(name: str) -> str:
    """The name of a class in a sentence.

    >>> with_article("int"), with_article("dict")
    ('an int', 'a dict')
    """
    return f"{'an' if name[:1] in set('aeiouAEIO') else 'a'} {name}"


def _shown(value: object) -> str:
    """A short, printable picture of ``value``."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
