"""Runs `sophon-agent` of the package in whose folder this file lies, for any working directory and PYTHONPATH.

A loader starts its own agent by this file. Otherwise a checkout without its extension, as working directory, would be
imported instead of the installed package. The agent ends with its loader. It ignores the signals that a scheduler sends
to all processes of a job (SIGHUP, SIGUSR1, SIGUSR2): they are for the training, whose handlers may save and go on. Its
workers inherit that. Under any other module name this file only imports the packages: worker processes and the
forkserver do so, and their module paths begin with the working directory, too.
"""

from __future__ import annotations

import os
import signal
import sys

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _import_from(folder: str) -> None:
    """Import both packages from a folder. Their modules are found in it from now on, all others as before."""
    sys.path.insert(0, folder)
    try:
        import sophon_loader  # noqa: F401
        import storage_agent  # noqa: F401
    finally:
        sys.path.remove(folder)


if __name__ == "__main__":  # as early as possible, because the imports below take some time
    for _number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(_number, signal.SIG_IGN)
if __name__ == "__main__" and sys.path[0] == os.path.join(_FOLDER, "storage_agent"):
    sys.path[0] = ""  # the working directory, as with `python -m`: modules of ops may lie there
_import_from(_FOLDER)

if __name__ == "__main__":
    from storage_agent.__main__ import main

    sys.exit(main())
