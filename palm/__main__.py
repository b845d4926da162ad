"""`python -m palm` is the command `palm`."""

from palm.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
