"""Targets: cache servers, engines, stores. Registration, the rules of what may be registered, views, health history.

Public: `service.FleetService`, `schemas`, `tables`, `targets` (what other rooms call), `live` (what telemetry fills
in), `targets_file.apply`, `naming`, and the hook types of `context`. `addresses` and `directories` hold the rules.
"""
