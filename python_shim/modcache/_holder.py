# SPDX-License-Identifier: Apache-2.0
"""The module in whose place a cached function is looked up."""

from __future__ import annotations

import torch


class Holder(torch.nn.Module):
    """Its ``forward`` is the function, its ``original_name`` what messages call that.

    A lookup with it raises TypeError where it cannot be identified: nobody would notice else.
    """
