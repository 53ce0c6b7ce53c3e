"""Tries an installed `headwater`, whose path is the argument: it starts, `headwater dev` answers, and ends clean."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request

_SECONDS = 300.0


def get(url: str) -> bytes:
    """What is answered there."""
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - the address is what it said itself
        return bytes(answer.read())


def main(headwater: str) -> None:
    """Raises AssertionError where it does not work."""
    started = time.monotonic()
    version = subprocess.run([headwater, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    command = [headwater, "dev", "--port", "0", "--rows", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as dev:
        assert dev.stdout is not None
        said = ""
        for line in dev.stdout:
            said += line
            if "Ctrl-C ends everything" in line:
                break
            assert time.monotonic() - started < _SECONDS, said
        assert "Ready." in said, said
        address = re.findall(r"http://\S+?/demo/", said)[0]
        page = get(address).decode()
        script = re.findall(r'src="[./]*(?:demo/)?(assets/[^"]+\.js)"', page)[0]
        assert len(get(address + script)) > 10_000
        user = json.loads(get(f"{address}users"))[0]["id"]
        assert json.loads(get(f"{address}token?user={user}"))["token"]
        dev.send_signal(signal.SIGINT)
        rest = dev.stdout.read()
        assert dev.wait(60) == 0, rest
        assert "Traceback" not in said + rest, said + rest
    python = ".".join(map(str, sys.version_info[:3]))
    took = time.monotonic() - started
    print(f"dist: {version} on Python {python}: `headwater dev` answered and ended, {took:.0f} s")  # noqa: T201


main(sys.argv[1])
