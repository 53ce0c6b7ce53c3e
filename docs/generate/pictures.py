"""Takes the pictures of the demo app in docs/pictures: on a wide screen and on a phone, light and dark.

`python -m docs.generate.pictures` runs a demo of its own, and uses the Chromium of the tests. The milliseconds that the
pictures show are those of the machine at that moment: take them on one that has nothing else to do.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import escape

from tests.support.chromium import FOLDER
from tests.support.dev_run import Run, running
from tests.support.fix_browser import Browser, open_browser

PICTURES = Path(__file__).resolve().parents[1] / "pictures"

_ADDRESS = r"http://127\.0\.0\.1:\d+/demo/"
_LEFT, _RIGHT = "[data-testid=panel-left]", "[data-testid=panel-right]"
_NEWEST = "[data-testid=happening]:first-child"
_WIDE, _PHONE = (1440, 1000), (390, 844)
_SETTLED_SECONDS = 2.0

# The Chromium of the tests has no font for code.
_FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{fonts}</dir><dir>/usr/share/fonts/truetype/dejavu</dir><cachedir>{cache}</cachedir>
  <alias><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


def main() -> None:
    """Write all pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fonts = folder / "fonts.conf"
        unpacked = FOLDER / "node_modules" / ".unpacked" / "fonts"
        fonts.write_text(_FONTS.format(fonts=escape(str(unpacked)), cache=escape(str(folder / "cache"))))
        os.environ["FONTCONFIG_FILE"] = str(fonts)
        with running(folder / "demo", "--port", "0", "--rows", "5000") as run, open_browser(folder) as page:
            _take(run, page)


def _take(run: Run, page: Browser) -> None:
    page.resize(*_WIDE)
    page.goto(run.wait_for(_ADDRESS))
    _wait_synced(page)
    time.sleep(_SETTLED_SECONDS)  # Spark has just ended its work, and the first change is slower than others
    for title in ("Call the lake house", "Bring the lantern", "Look for the picnic blanket"):
        page.type(f"{_LEFT} [data-testid=new-todo]", title)
        page.press("Enter")
        page.wait_for(f"{_NEWEST} [data-testid=what]", f"Ada: insert “{title}”")
        page.wait_for(f"{_NEWEST} [data-testid=time-right]")
    page.click(f"{_RIGHT} [data-testid=todo]:has([aria-label='Delete Bring the lantern']) [data-testid=todo-title]")
    page.press("End")
    page.type(f"{_RIGHT} [data-testid=todo-title-field]:focus", "s, both of them")
    page.press("Enter")
    page.wait_for(f"{_NEWEST} [data-testid=time-left]")
    _picture(page, "demo-wide-light")
    _play_conflict(page)
    page.dark(True)
    _picture(page, "demo-wide-dark")

    page.resize(*_PHONE)
    page.dark(False)
    page.reload()
    _wait_synced(page)
    _picture(page, "demo-phone-light")
    _play_conflict(page)
    page.dark(True)
    _picture(page, "demo-phone-dark")


def _wait_synced(page: Browser) -> None:
    for panel in (_LEFT, _RIGHT):
        page.wait_for(f"{panel} [data-testid=status][data-state=synced]", deadline=60)


def _play_conflict(page: Browser) -> None:
    page.click("[data-testid=play-conflict]")
    page.wait_for(f"{_RIGHT} [data-testid=conflict]")
    page.wait_for("[data-testid=told]", "see Ben's side.")


def _picture(page: Browser, name: str) -> None:
    page.click("h1")  # no field has the focus, and no button the mouse
    time.sleep(_SETTLED_SECONDS)
    page.screenshot(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
