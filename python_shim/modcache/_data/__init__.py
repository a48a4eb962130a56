# SPDX-License-Identifier: Apache-2.0
"""Cached datasets: samples by index or from a stream, also in workers."""
