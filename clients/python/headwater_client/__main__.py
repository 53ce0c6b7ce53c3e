"""`python -m headwater_client` is the command `headwater-client`."""

from __future__ import annotations

from headwater_client.cli import main

main()
