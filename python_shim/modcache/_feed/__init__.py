# SPDX-License-Identifier: Apache-2.0
"""Feeds an accelerator: reading ahead, placing values, batches on a stream of their own."""
