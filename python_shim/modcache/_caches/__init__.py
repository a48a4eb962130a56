# SPDX-License-Identifier: Apache-2.0
"""Caches beside the default one of the process."""
