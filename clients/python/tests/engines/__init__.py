# SPDX-License-Identifier: Apache-2.0
"""What each engine does with hf3fs_fuse.io, done again on a real mount."""
