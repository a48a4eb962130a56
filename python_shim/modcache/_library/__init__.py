# SPDX-License-Identifier: Apache-2.0
"""The parts that need no module: the native library, settings, mode, counters, messages."""
