"""Run as a script, isolated and without site-packages: `python -I -S …/guardian/__main__.py CONTROL_FD HOST_PID [CGROUP_NAME]`."""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.abspath(f"{os.path.dirname(__file__)}/../../.."))
    from longwatch.host.guardian.main import main

    main(sys.argv[1:])
