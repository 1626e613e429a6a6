"""What every test shares."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Property tests are about values, never about time: a busy machine must not decide them.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")
