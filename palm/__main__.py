"""`python -m palm` is the command `palm`."""

import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent
if __name__ == "__main__" and not __package__ and str(HOME) in sys.path:
    # Run as a file: palm's packages must not be top-level modules, and palm's parent folder comes last.
    sys.path.remove(str(HOME))
    sys.path.append(str(HOME.parent))

from palm.cli import main  # noqa: E402

if __name__ == "__main__":
    raise SystemExit(main())
