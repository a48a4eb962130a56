# SPDX-License-Identifier: Apache-2.0
"""Models that load at their first miss."""

# Pickles of version 0.2.0 name them here: former_names.py.
from modcache._lazy.model import Lazy, lazy

__all__ = ["Lazy", "lazy"]
