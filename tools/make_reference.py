"""Generate the parts of docs/reference that the code decides: `make reference`.

With `--check` nothing is written; the exit code is 1 if a page differs from the code.
"""

from __future__ import annotations

import sys

from reference import api, command_line, events, metrics, settings

PAGES = (api.PAGE, command_line.PAGE, events.PAGE, metrics.PAGE, settings.PAGE)


def main(arguments: list[str]) -> int:
    stale = [page for page in PAGES if page.render() != page.path.read_text(encoding="utf-8")]
    for page in stale:
        if "--check" in arguments:
            print(f"docs/reference/{page.file} differs from the code; run `make reference`")
        else:
            page.path.write_text(page.render(), encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
