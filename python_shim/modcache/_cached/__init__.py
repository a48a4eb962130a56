# SPDX-License-Identifier: Apache-2.0
"""``modcache.cached``: makes input and key of the arguments of a call."""

# Pickles of version 0.2.0 name them here: former_names.py.
from modcache._cached.decorator import cached

__all__ = ["cached"]
