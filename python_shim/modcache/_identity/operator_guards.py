# SPDX-License-Identifier: Apache-2.0
"""Guards of a snapshot for operators that were written in Python (``_code/operators.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from modcache._code.operators import KERNELS, PARTS, Operator, definitions, functions_inside
from modcache._library.compiled_part import guards


def guards_of_operator(operator: Operator) -> Iterator[tuple[Any, ...]]:
    """Guards which definition has the operator's name."""
    known = definitions().data
    held = known.get(operator.name)
    expected = (guards.NOTHING,) if held is None else (guards.VALUE, held)
    yield guards.IN_ITEM, known, operator.name, expected


def guards_of_definition(
    definition: Any, expected: Callable[[Any], tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    """Guards what ``torch.library.custom_op`` made. ``expected`` guards a value and its parts."""
    for part in PARTS:
        yield guards.IN_ATTRIBUTE, definition, part, expected(getattr(definition, part, None))
    kernels = getattr(definition, KERNELS)
    items: list[tuple[Any, ...]] = []
    for device, kernel in kernels.items():
        items += ((guards.VALUE, device), (guards.OBJECT, kernel))
        expected(functions_inside(kernel))
    yield guards.IN_ATTRIBUTE, definition, KERNELS, (guards.MAPPING, dict, *items)
