"""`python -m model`: the commands of `voxport`."""

import sys
from functools import partial

from voxport.__main__ import main as voxport

main = partial(voxport, prog="python -m model")

if __name__ == "__main__":
    sys.exit(main())
