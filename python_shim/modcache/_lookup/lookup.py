# SPDX-License-Identifier: Apache-2.0
"""lookup_or_run and fingerprints, for scripted and eager modules alike."""

from __future__ import annotations

from typing import Any

import torch

from modcache._call import address, begun, eager
from modcache._call.bypass import way_of
from modcache._call.fast_path import Begun, fast_hit, held_by_library
from modcache._call.function import call_name_of
from modcache._call.keys import Keys, checked_keys
from modcache._call.padding import RAGGED_ROWS, Padding, padding_of, why_not_padded
from modcache._call.parts import has_shared
from modcache._call.rows import (
    checked_ragged,
    in_wanted_form,
    row_count,
    texts_and_ids,
    why_apart,
)
from modcache._export.recorded import recorded
from modcache._identity.scripted import native
from modcache._identity.wrappers import identified_as
from modcache._lazy.model import Lazy, to_record
from modcache._library import mode
from modcache._library.text import checked_text
from modcache._lookup.lazy_call import lazily_looked_up

_scripted_rows: Any = torch.classes.cache.ScriptedModule.rows


def lookup_or_run(
    module: torch.nn.Module,
    input: Any,
    key: Keys,
    *,
    scope: str = "",
    method: str = "forward",
    ragged: str = "error",
    mask: str | int | torch.Tensor | None = None,
    lengths: str | int | torch.Tensor | None = None,
    pad_value: float = 0.0,
) -> Any:
    """Returns the module's output for a sample or batch: from the cache, or by a run.

    >>> import modcache, torch
    >>> encoder = torch.nn.Linear(4, 2).requires_grad_(False).eval()
    >>> batch = torch.randn(3, 4)
    >>> first = modcache.lookup_or_run(encoder, batch, ["a", "b", "c"])  # runs, one entry per row
    >>> again = modcache.lookup_or_run(encoder, batch.flip(0), ["c", "b", "a"])  # does not
    >>> torch.equal(again, first.flip(0))
    True

    Args:
        module: an eager ``torch.nn.Module``, or a ScriptModule (scripted, traced or loaded).
        input: the module's input: a Tensor of any shape, or a tuple, whose items become the
            arguments of the method. A list, a dict or a UserDict (Hugging Face's BatchEncoding) is
            one argument. NumPy arrays, PIL images and torchvision's tv_tensors are data, as tensors
            are; so are the tensors in values of classes that ``modcache.register_value`` or the
            pytree registry knows. Other values (numbers, text, dtypes, enums, ...) are part of the
            address. An input with a value that has no unambiguous text passes through uncached.
        key: names the sample: non-empty text of any length, or the same as bytes in UTF-8. The same
            key with the same module means the same output. For a batch, one key per row: a list of
            B texts, or B ids as a list of int or an integer tensor [B] or [B, 1]; id 7 and key "7"
            are the same. NumPy arrays of text or integers and pandas Series are such lists, too.
            Ids are int64; larger numbers are keys as text. A tuple of text and
            integers, such as ``("video", 3)``, is a key as well, and so are those in a list; a
            tuple of text alone, or of integers alone, is a list of keys. With one key per row,
            every tensor in ``input`` and in the output has the first dimension B. Only the missing
            rows are run, each distinct key once, and other values than tensors belong to every
            row. So does a tensor of the first size 1 beside others of B (``position_ids``), which
            is then part of the address with all its values. A list of B images has one per row.
        scope: a name for the module that the caller answers for, for instance
            ``"clip-vit-b32@3"``; it replaces the fingerprint and its check. The default is the
            module's fingerprint, which changes with its code, attributes and weights.
        method: the method to run.
        ragged: what to do with rows whose shapes differ: "error": raise; "list": return all rows
            as a list; "pad": return a tensor [B, longest, ...] padded with zeros, and an int64
            tensor [B] of lengths.
        mask: for rows of their own length in a batch that was padded on one side: the argument
            that says which part of each row is true, by name (``"attention_mask"``, an item of a
            dict too) or place, or the tensor itself: [B, longest], of booleans or numbers. Each
            entry is then as long as its row, is found whatever its batch is padded to, and is
            handed out padded with ``pad_value`` to what this batch has. The dimensions of a result
            that are padded are found by one more run of one row at another length, which must give
            the same; other results are not cached, with a warning.
        lengths: the same as a tensor of integers [B], or the argument that has it.
        pad_value: the number beside the true part of each row of a result.

    Returns:
        The output: the module's values, dtypes and shapes, in the same tuples, lists, dicts, named
        tuples and classes: UserDicts, those of torch's pytree registry (Hugging Face's ModelOutput)
        and those that ``modcache.register_value`` names. NumPy arrays are stored, too, and with one
        key for all of it PIL images. A value from the cache never requires grad. Writing into it
        changes no later result.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: an empty key, text with lone surrogates, a number of keys that is not the
            number of rows, or rows that do not fit together.
        AttributeError, or RuntimeError for a scripted module: it has no such method.
        RuntimeError: an output without a first dimension of B.
        Any exception of the module, unchanged; nothing is stored then.

    Inside ``torch.jit.script`` a call of this function compiles into the operator
    ``cache::lookup_or_run``, which returns one Tensor.

    Under ``torch.export`` and ``torch.compile(fullgraph=True)`` the recorded program looks up when
    it runs, and runs the module on the whole batch if a row is missing. Its keys are ids; an export
    may also have one fixed text. A call whose result may not be cached is recorded as a call of the
    module alone, with a warning.
    """
    if torch.compiler.is_compiling():
        return recorded(
            lookup_or_run, to_record(module), input, key, scope, method, ragged, mask, lengths,
            pad_value,
        )  # fmt: skip
    if mode.active_entries and mode.is_among_tasks():
        with mode.as_task():
            return lookup_or_run(
                module, input, key, scope=scope, method=method, ragged=ragged, mask=mask,
                lengths=lengths, pad_value=pad_value,
            )  # fmt: skip
    if ragged == "error" and mask is None and lengths is None:
        hit = fast_hit(module, input, key, scope, method)
        if hit is NotImplemented:
            return eager.run_plain(module, input, method)
        if hit is not None:
            is_begun = type(hit) is Begun
            return begun.finished(hit, module, input, key, scope, method) if is_begun else hit
    _check_module(module, "lookup_or_run")
    keys = checked_keys(key)
    ragged = checked_ragged(ragged)
    if ragged != "error" and (mask is not None or lengths is not None):
        raise ValueError("lookup_or_run: ragged is for rows without mask and lengths.")
    own_lengths = (mask, lengths, pad_value)
    is_ragged = ragged != "error"
    is_apart, value = _looked_up(
        module, input, keys, scope, method, "lookup_or_run", own_lengths, is_ragged=is_ragged
    )
    if isinstance(keys, str):
        return value
    if is_apart and ragged == "error":
        return eager.run_whole(module, input, keys, method, why_apart(value))
    return in_wanted_form(is_apart, value, ragged, call_name_of(module, method))


def lookup_or_run_any(
    module: torch.nn.Module,
    input: Any,
    key: Keys,
    *,
    scope: str = "",
    method: str = "forward",
) -> Any:
    """Does the same as ``lookup_or_run``, but may return a list of rows.

    It returns a list if the rows do not fit into one batch. ``lookup_or_run`` runs the module on
    the whole batch then, unless ``ragged`` says otherwise.

    Inside ``torch.jit.script`` a call compiles into the operator ``cache::lookup_or_run_any``,
    which returns ``Any``: structured values with the type that the method declares.
    """
    if torch.compiler.is_compiling():
        return recorded(lookup_or_run, to_record(module), input, key, scope, method, "error")
    if mode.active_entries and mode.is_among_tasks():
        with mode.as_task():
            return lookup_or_run_any(module, input, key, scope=scope, method=method)
    hit = fast_hit(module, input, key, scope, method)
    if hit is NotImplemented:
        return eager.run_plain(module, input, method)
    if hit is not None:
        is_begun = type(hit) is Begun
        return begun.finished(hit, module, input, key, scope, method) if is_begun else hit
    _check_module(module, "lookup_or_run_any")
    return _looked_up(module, input, checked_keys(key), scope, method, "lookup_or_run_any")[1]


def _looked_up(
    module: torch.nn.Module,
    input: Any,
    keys: str | list[str] | torch.Tensor,
    scope: str,
    method: str,
    function: str,
    own_lengths: tuple[Any, Any, float] = (None, None, 0.0),
    *,
    is_ragged: bool = False,
) -> tuple[bool, Any]:
    """Returns False and the value; or True, and a list of rows that do not fit together.

    ``own_lengths``: mask, lengths and pad_value, as ``lookup_or_run`` takes them. ``is_ragged``:
    results of two rows may differ in shape.
    """
    scope = checked_text(scope, "scope")
    method = checked_text(method, "method")
    is_padded = any(which is not None for which in own_lengths[:2])
    here = module._source.current() if is_padded and isinstance(module, Lazy) else module
    padding = RAGGED_ROWS if is_ragged else padding_of(here, method, input, *own_lengths)
    if padding.is_padded and (why := why_not_padded(input)):
        return False, eager.run_uncached(module, input, keys, method, why)
    if isinstance(keys, str) and padding.is_padded:
        raise ValueError(
            f"{function}: mask and lengths are for rows, but there is one key for the whole input; "
            "pass one key per row."
        )
    if isinstance(module, Lazy):

        def ordinary(inner: torch.nn.Module, scope: str) -> tuple[bool, Any]:
            return _looked_up(
                inner, input, keys, scope, method, function, own_lengths, is_ragged=is_ragged
            )

        return lazily_looked_up(module, input, keys, scope, method, ordinary, padding)
    why, is_operators = way_of(module, input)
    if why:
        return False, eager.run_uncached(module, input, keys, method, why)
    if isinstance(keys, str):
        if is_operators:
            operator = torch.ops.cache.lookup_or_run_any
            value = operator(native(module), input, keys, scope=scope, method=method)
            held_by_library(module)  # so that the next call may be a plain hit
            return False, value
        return False, eager.lookup_or_run(module, input, keys, scope, method)
    return _rows_looked_up(module, input, keys, scope, method, padding, is_operators)


def _rows_looked_up(
    module: torch.nn.Module,
    input: Any,
    keys: list[str] | torch.Tensor,
    scope: str,
    method: str,
    padding: Padding,
    is_operators: bool,
) -> tuple[bool, Any]:
    if not is_operators or has_shared(input, row_count(keys)):
        return eager.lookup_or_run_rows(module, input, keys, scope, method, padding)
    held = held_by_library(module)
    options = (*texts_and_ids(keys), scope, method, *padding)
    return _scripted_rows(held, input, *options)  # type: ignore[no-any-return]


def fingerprint(module: torch.nn.Module, *, method: str = "forward") -> str:
    """Returns the module's identity: 32 hexadecimal digits, the default ``scope`` of its entries.

    It changes with the module's code, attributes and weights, and is the same in every process.

    Args:
        module: eager or scripted. A module inside DDP or torch.compile has the same fingerprint.
        method: the method that is to be run.

    Raises:
        TypeError: no module, or an eager one with an attribute that cannot be hashed.
        AttributeError: an eager module without such a method.
        RuntimeError: either of these for a scripted one.

    >>> import modcache, torch
    >>> module = torch.nn.Linear(2, 2)
    >>> before = modcache.fingerprint(module)
    >>> with torch.no_grad():
    ...     _ = module.bias.add_(1)
    >>> modcache.fingerprint(module) == before
    False
    """
    _check_module(module, "fingerprint")
    method = checked_text(method, "method")
    if isinstance(module, Lazy):
        noted = module._source.noted_fingerprint(method)
        if noted:
            return noted
        loaded = module._source.load()
        module._source.note_fingerprint(method)
        module = loaded
    inner = identified_as(module)
    if isinstance(inner, torch.jit.ScriptModule):
        return str(torch.ops.cache.fingerprint(native(inner), method=method))
    return address.fingerprint(inner, method)


def refresh_fingerprint(module: torch.nn.Module) -> str:
    """Reads every weight again, and returns the fingerprint.

    Call it after changes that no check can see: single elements written through a NumPy view or a
    raw pointer, or in place under inference mode on an accelerator.

    Raises:
        The errors of ``fingerprint``.
    """
    _check_module(module, "refresh_fingerprint")
    inner = identified_as(module.load() if isinstance(module, Lazy) else module)
    if isinstance(inner, torch.jit.ScriptModule):
        torch.ops.cache.refresh_fingerprint(native(inner))
        return fingerprint(inner)
    return address.refresh_fingerprint(inner)


def _check_module(module: object, function: str) -> None:
    if isinstance(module, torch.nn.Module):
        return
    if isinstance(module, torch.jit.ScriptFunction):
        cure = "Put it into a module: a scripted function has no attributes to identify it by."
    elif isinstance(module, type) and issubclass(module, torch.nn.Module):
        cure = f"Pass an instance: {module.__name__}(...)."
    else:
        cure = "Pass an eager torch.nn.Module or a scripted, traced or loaded one."
    given = module.__name__ if isinstance(module, type) else type(module).__name__
    raise TypeError(f"{function}: module must be a torch.nn.Module, but got {given}. {cure}")
