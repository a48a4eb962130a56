# SPDX-License-Identifier: Apache-2.0
"""The parts that need no module: the native library, settings, mode, counters, messages."""

# Pickles of version 0.2.0 name them here: former_names.py.
from modcache._library.loading import cmake_prefix_path

__all__ = ["cmake_prefix_path"]
