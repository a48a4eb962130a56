# SPDX-License-Identifier: Apache-2.0
"""The fill pass: its batches, the shares of ranks, the progress bar, the summary."""
