"""The script that runs the guardian, isolated and without site-packages.

Called as `python -I -S …/guardian/__main__.py CONTROL_FD HOST_PID [CGROUP_NAME]`.
"""

import os
import sys


def stub_packages() -> None:
    """Put empty modules in the place of the packages around this one, to save the memory of their
    imports.
    """
    above = os.path.abspath(f"{os.path.dirname(__file__)}/../..")
    for name, folder in (("longwatch", above), ("longwatch.host", f"{above}/host")):
        package = type(sys)(name)
        package.__path__ = [folder]
        sys.modules[name] = package


if __name__ == "__main__":
    stub_packages()
    from longwatch.host.guardian.main import main

    main(sys.argv[1:])
