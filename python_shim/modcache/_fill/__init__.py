# SPDX-License-Identifier: Apache-2.0
"""The fill pass: its batches, the shares of ranks, the progress bar, the summary."""

# Pickles of version 0.2.0 name them here: former_names.py.
from modcache._fill.fill_pass import fill

__all__ = ["fill"]
