# SPDX-License-Identifier: Apache-2.0
"""What each engine does with hf3fs_fuse.io, repeated on a real mount."""
