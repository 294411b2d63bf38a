# SPDX-License-Identifier: Apache-2.0
import os
from typing import Union

def get_mount_point(p: Union[str, os.PathLike[str]]) -> str: ...
