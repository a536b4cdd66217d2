"""`python -m moeinspect`."""

import sys

from moeinspect.cli import main

if __name__ == "__main__":
    sys.exit(main())
