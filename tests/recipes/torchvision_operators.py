# SPDX-License-Identifier: Apache-2.0
"""Lets torchvision be imported beside a torch that its compiled part was not built for.

PyPI has torchvision for CUDA alone. Beside a CPU build of torch its compiled part cannot be loaded,
and then its import fails at the operators that it describes. No recipe calls one of these (boxes
and regions); models and transforms are Python.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import torch

_declared: list[torch.library.Library] = []  # a library that is freed takes its operators along


def declare_missing() -> None:
    """Declares the operators that torchvision describes, unless its compiled part can be loaded."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _declared:
        return
    folder = Path(spec.origin).parent
    try:
        torch.ops.load_library(folder / "_C.so")
        return
    except OSError:
        text = (folder / "_meta_registrations.py").read_text(encoding="utf-8")
    library = torch.library.Library("torchvision", "DEF")
    for name in re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"\)', text):
        library.define(f"{name}(Tensor input, Tensor rois) -> Tensor")
    _declared.append(library)
