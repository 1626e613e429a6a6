"""What every test shares."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The panel honours the proxies of its environment: a test that wants one says so.
for _name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)

# Property tests are about values, never about time: a busy machine must not decide them.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")
