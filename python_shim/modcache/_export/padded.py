# SPDX-License-Identifier: Apache-2.0
"""Rows of their own length in a recorded call.

A program cannot run a row once more at another length, which is how eager calls see whether a
module heeds its mask, and which dimensions of its result are padded (call/learned_padding.h). So a
call is recorded only after eager calls of this process have seen it, and carries what they saw.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import torch

from modcache._call.function import fingerprint_of_eager
from modcache._call.padding import argument_of, check_pad_value
from modcache._export.scope import Path, UncachedCallError, tensor_at, with_real_tensors
from modcache._identity.wrappers import identified_as

# Places of the mask or the lengths: beside the input's tensors, and nowhere.
BESIDE_INPUT = -1
WHOLE_ROWS = -2


class Marks(NamedTuple):
    """The arguments of lookup_or_run that say how long each row is."""

    kind: str  # "mask" or "lengths"; "both": a mistake; "": the rows are whole
    which: Any  # the argument that has it; None: ``given`` does
    given: list[torch.Tensor]
    pad_value: float


def kind_of(mask: Any, lengths: Any) -> str:
    if mask is None:
        return "" if lengths is None else "lengths"
    return "mask" if lengths is None else "both"


class Evidence(NamedTuple):
    """How the eager calls are found that had this module, and the form of its result."""

    module: torch.nn.Module
    kind: str  # of the scope (module/exported/exported.h)
    scope: str
    paths: tuple[Path, ...]
    method: str
    arguments: str
    arithmetic: str
    leaves: list[torch.Tensor]


def place_of(
    marks: Marks, module: torch.nn.Module, method: str, input: Any, tensors: list[torch.Tensor]
) -> int:
    """Returns the place of the mask or the lengths among ``tensors``, which are the input's.

    Raises:
        ValueError, TypeError: the caller's mistakes, as in lookup_or_run.
    """
    if not marks.kind:
        return WHOLE_ROWS
    if marks.kind == "both":
        raise ValueError("lookup_or_run: mask and lengths say the same; give one of them.")
    check_pad_value(marks.pad_value)
    if marks.given:
        return BESIDE_INPUT
    found = argument_of(module, method, input, marks.which, marks.kind)
    if found is None:  # the caller left the argument out
        return WHOLE_ROWS
    return next(place for place, tensor in enumerate(tensors) if tensor is found)


def padding_fields(
    marks: Marks, place: int, tensors: list[torch.Tensor], evidence: Evidence
) -> list[str]:
    """Returns the fields of a recorded call that tell of its padding.

    Raises:
        UncachedCallError: eager calls have not seen enough of it, or the result has other sizes.
        ValueError: the mask or the lengths have a wrong number of dimensions.
    """
    tensor = marks.given[0] if place == BESIDE_INPUT else tensors[place]
    dimensions = 2 if marks.kind == "mask" else 1
    if tensor.dim() != dimensions:
        wanted = "a mask is a tensor [B, longest]"
        if marks.kind == "lengths":
            wanted = "lengths are a tensor of integers [B]"
        raise ValueError(f"lookup_or_run: {wanted}, but got {list(tensor.shape)}.")
    longest = tensor.shape[1] if marks.kind == "mask" else _longest(tensors)
    dims, digest, signature = _seen(evidence)
    _check_sizes(evidence.leaves, dims, longest)
    bits = struct.unpack("<Q", struct.pack("<d", float(marks.pad_value)))[0]
    return [marks.kind, str(bits), "".join(f"{each}," for each in dims), digest, signature]


def _seen(evidence: Evidence) -> tuple[list[int], str, str]:
    """Returns the padded dimensions of each tensor, as bits, and what they were seen with.

    That is the digest of the weights and the signature of the input.
    """
    digest = ""
    if evidence.kind != "n":
        real = with_real_tensors(evidence.module)
        weights = [tensor_at(real, path) for path in evidence.paths]
        digest = str(torch.classes.cache.Recording.weights_digest(weights))
    why_not = ""
    for scope in scopes_of(evidence):
        dims, signature, why_not = torch.classes.cache.Recording.seen_padding(
            scope, evidence.method, evidence.arguments, evidence.arithmetic
        )
        if not why_not:
            return list(dims), digest, signature
    raise UncachedCallError(why_not)


def scopes_of(evidence: Evidence) -> list[str]:
    """Returns the scopes that eager calls of the module may have.

    That of a program may be that of the scripted form, or a part of a scope.
    """
    if evidence.kind == "n":
        return [evidence.scope]
    real = with_real_tensors(evidence.module)
    return [evidence.scope, fingerprint_of_eager(identified_as(real), evidence.method)]


def _longest(tensors: list[torch.Tensor]) -> int | torch.SymInt:
    sizes = [tensor.shape[1] for tensor in tensors if tensor.dim() > 1]
    if not sizes or not all(is_same_size(size, sizes[0]) for size in sizes):
        raise ValueError(
            "lengths: the size that the batch was padded to cannot be told, since the second "
            f"dimensions of the input have the sizes {sizes}; give a mask, [B, longest]."
        )
    return sizes[0]


def _check_sizes(leaves: list[torch.Tensor], dims: list[int], longest: int | torch.SymInt) -> None:
    """Compares what eager calls have seen with the sizes that the recorder knows."""
    is_alike = len(leaves) == len(dims)
    for leaf, padded in zip(leaves, dims, strict=False):
        is_alike = is_alike and not padded >> max(leaf.dim() - 1, 0)
        for number, size in enumerate(leaf.shape[1:]):
            is_padded = bool(padded >> number & 1)
            # Fixed sizes may be the same by chance.
            is_by_chance = not is_padded and not isinstance(size, torch.SymInt)
            is_alike = is_alike and (is_by_chance or is_padded == is_same_size(size, longest))
    if not is_alike:
        raise UncachedCallError(
            "the recorder sees other sizes that follow the length of the batch than eager calls saw"
        )


def is_same_size(one: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    """Returns whether two sizes are known to be one, without a new guard."""
    if isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt):
        return bool(one.node.expr == other.node.expr)
    return type(one) is type(other) and one == other
