"""Whether the Headwater of this container is well: exits 0 when the URL in HEADWATER_HEALTH_URL answers 200. A
replicator alone answers no probes; its metrics do as well."""

import os
import sys
import urllib.request

url = os.environ.get("HEADWATER_HEALTH_URL", "http://127.0.0.1:8080/probes/liveness")
try:
    with urllib.request.urlopen(url, timeout=4) as answer:  # noqa: S310 - the address is the container's own
        sys.exit(0 if answer.status == 200 else 1)
except OSError as error:
    sys.exit(f"{url}: {error}")
