"""`voxport` or `python -m voxport`: the command line."""

import gc
import os
import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None, prog: str = "voxport", default: str | None = None) -> int:
    """Returns the exit code; `bundle.errors` lists them. `default` is the command of options without one."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by a background job
        signal.signal(
            signal.SIGINT, signal.SIG_DFL
        )  # the imports below take time and would print a traceback
    from voxport.cli.main import run_command_line

    if "_ARGCOMPLETE" in os.environ:
        from voxport.cli.commands.completion import answer_shell

        answer_shell(prog)
    code = run_command_line(sys.argv[1:] if argv is None else argv, prog, default)
    if code:
        gc.collect()  # frees engines, which then stop opening sessions that Python would wait for
    return code


if __name__ == "__main__":
    sys.exit(main())
