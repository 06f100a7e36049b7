import sys

from benchmarks.peers.compare import main

sys.exit(main())
