# SPDX-License-Identifier: Apache-2.0
"""3FS for Python programs: hf3fs_fuse.io has the rings, hf3fs_fuse.fuse a function on paths."""
