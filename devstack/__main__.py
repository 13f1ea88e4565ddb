"""`python3 -m devstack`: see devstack.cli."""

import sys

from devstack.cli import main

if __name__ == "__main__":
    sys.exit(main())
