# SPDX-License-Identifier: Apache-2.0
"""The module in whose place a cached function is looked up."""

from __future__ import annotations

import torch


class Holder(torch.nn.Module):
    """Its ``forward`` is the function; its ``original_name`` is the function's name in messages.

    A lookup with a holder that cannot be identified raises TypeError, since a function that runs
    uncached would go unnoticed. Where an object raises while it is identified, the function runs.
    """
