# SPDX-License-Identifier: Apache-2.0
"""Explains what a call would find: ``modcache.explain``."""

# Pickles of version 0.2.0 name them here: former_names.py.
from modcache._explain.report import explain

__all__ = ["explain"]
