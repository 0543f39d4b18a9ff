"""The script for `ray submit ray_cluster.yaml quality/run.py -- --input … --output …`: `taojin quality` on a cluster.

`ray submit` copies this one file to the head and runs it there, so it imports only the installed package. Flags are
those of `taojin quality`; without --address the cluster of the machine it runs on is meant.
"""

import os
import sys

from taojin.cli import main

if __name__ == "__main__":
    os.environ.setdefault("RAY_ADDRESS", "auto")
    sys.exit(main(["quality", *sys.argv[1:]]))
