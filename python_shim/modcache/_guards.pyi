# SPDX-License-Identifier: Apache-2.0
# python_shim/native/snapshot.h explains these names.
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import torch

class Snapshot:
    def __init__(self, guards: Sequence[tuple[Any, ...]], order: Sequence[int]) -> None: ...
    def tensors(self) -> list[torch.Tensor] | None: ...

class Begun:  # begun.h
    scope: str
    value: Any
    has_run: bool
    def finish(
        self,
        output: Any,
        impure_because: str,
        requiring_grad: int,
        is_training: bool,
        is_checkpointed: bool,
        /,
    ) -> tuple[bool, str, str]: ...
    def outcome(self) -> tuple[bool, str, str]: ...
    def put_manifest(self, class_name: str, text: str) -> None: ...
    def abandon(self) -> None: ...
    def address(self) -> int: ...
    is_apart: bool

def connect(  # connection.h
    library: int,
    tensor: torch.Tensor,
    tensor_type: type[torch.Tensor],
    parameter_type: type[torch.nn.Parameter],
    states: dict[int, Any],
    scripted: dict[int, Any],
    run: Any,
    /,
) -> None: ...
def find_hit(  # hits.h
    module: Any, input: Any, key: Any, scope: Any, method: Any, /
) -> Any: ...  # a value, Begun, NotImplemented or None

block: ContextVar[Any]  # the innermost block of keys, or None (_call/key_block.py)

ANYTHING: int
NOTHING: int
VALUE: int
OBJECT: int
TENSOR: int
ITEMS: int
MAPPING: int
PARTS: int
IN_ATTRIBUTES: int
IN_CLASS: int
IN_MEMBER: int
IN_MEMBER_PART: int
IN_GLOBAL: int
IN_CELL: int
IN_FUNCTION: int
IN_ITEM: int
IN_ATTRIBUTE: int
