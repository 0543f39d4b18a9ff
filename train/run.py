"""The script for `ray submit ray_cluster.yaml train/run.py -- --config train.yaml`: `taojin train` on that cluster.

`ray submit` copies this one file to the head and runs it there, so it imports only the installed package. Flags are
those of `taojin train`; without an address in the YAML the cluster of the machine it runs on is meant.
"""

import os
import sys

from taojin.cli import main

if __name__ == "__main__":
    os.environ.setdefault("RAY_ADDRESS", "auto")
    sys.exit(main(["train", *sys.argv[1:]]))
