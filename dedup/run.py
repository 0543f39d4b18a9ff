"""The script for `ray submit ray_cluster.yaml dedup/run.py -- --input … --output …`: `taojin dedup` on that cluster.

`ray submit` copies this one file to the head and runs it there, so it imports only the installed package. Flags are
those of `taojin dedup`; without --address the cluster of the machine it runs on is meant.
"""

import os
import sys

from taojin.cli import main

if __name__ == "__main__":
    os.environ.setdefault("RAY_ADDRESS", "auto")
    sys.exit(main(["dedup", *sys.argv[1:]]))
