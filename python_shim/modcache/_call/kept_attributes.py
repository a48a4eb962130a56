# SPDX-License-Identifier: Apache-2.0
"""The attributes of a module, put back after a run that the caller did not ask for."""

from __future__ import annotations

from typing import Any

import torch

_ABSENT: Any = object()


class KeptAttributes:
    """The attributes, tensors and submodules of a module and all in it, as they are now.

    A trial of a longer row than any before may leave something behind, such as the greatest length
    that was seen, and the model must not notice. What is changed in place, such as the elements of
    a tensor or a list, is not restored.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._kept = [
            (attributes, dict(attributes))
            for part in module.modules()
            for attributes in (vars(part), part._parameters, part._buffers, part._modules)
            if type(attributes) is dict  # TorchScript keeps its own
        ]

    def restore(self) -> None:
        """Puts back each attribute that is another object than it was."""
        for attributes, before in self._kept:
            if list(attributes) != list(before):  # their order counts, in a Sequential for one
                attributes.clear()
            for name, value in before.items():
                if attributes.get(name, _ABSENT) is not value:
                    attributes[name] = value
