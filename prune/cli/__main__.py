"""`python -m headwise.prune.cli`, which is what `accelerate launch -m` and `torchrun -m` start."""

import sys

from headwise.prune.cli import main

if __name__ == "__main__":
    sys.exit(main())
