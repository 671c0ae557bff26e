"""`python -m losszoo`."""

from __future__ import annotations

import sys

from losszoo.cli import main

sys.exit(main())
