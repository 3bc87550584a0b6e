"""`python -m export`: the commands of `voxport`; options without a command belong to `export`."""

import sys
from functools import partial

from voxport.__main__ import main as voxport

main = partial(voxport, prog="python -m export", default="export")

if __name__ == "__main__":
    sys.exit(main())
