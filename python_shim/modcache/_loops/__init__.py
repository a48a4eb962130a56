# SPDX-License-Identifier: Apache-2.0
"""Keys in loops that somebody else runs: the Hugging Face Trainer and Lightning."""
