"""Run as a file, `sophon-agent` of the package that it lies in, whatever the working directory and PYTHONPATH hold.

A loader starts its own agent so. Otherwise a checkout without its extension, as a working directory, would be taken in
place of the package that is installed. It ends with its loader, and not by signals that a scheduler sends to all
processes of a job (SIGHUP, SIGUSR1, SIGUSR2): these are the training's, whose handlers may save and go on. Its workers
inherit that. Run by any other name it only sees to the imports: that is what worker processes
and the forkserver do, whose module paths begin with the working directory as well.
"""

from __future__ import annotations

import os
import signal
import sys

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _import_from(folder: str) -> None:
    """Import both packages from there. Their modules are found in them from now on, all others as before."""
    sys.path.insert(0, folder)
    try:
        import sophon_loader  # noqa: F401
        import storage_agent  # noqa: F401
    finally:
        sys.path.remove(folder)


if __name__ == "__main__":  # as early as can be: it takes some time to import what follows
    for _number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(_number, signal.SIG_IGN)
if __name__ == "__main__" and sys.path[0] == os.path.join(_FOLDER, "storage_agent"):
    sys.path[0] = ""  # the working directory, as with `python -m`: modules of ops may lie there
_import_from(_FOLDER)

if __name__ == "__main__":
    from storage_agent.__main__ import main

    sys.exit(main())
