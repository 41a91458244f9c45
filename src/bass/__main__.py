"""`python -m bass` is `bass`."""

import sys

from bass.cli import main

sys.exit(main())
