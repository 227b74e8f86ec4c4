"""`python -m sophon_loader.doctor`."""

import sys

from sophon_loader.doctor import main

sys.exit(main())
