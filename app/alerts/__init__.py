"""Derived facts, alarms and notifications.

`gather` reads rows and snapshots; `facts` derive one fact each from them and `rules` judge a fact against its limits
(both pure); `states` decides what that changes (pure), `causes` and `matching` what is held back (pure); `evaluation`
writes rows and puts messages into the outbox in one transaction; `delivery` sends them.
Public: `service.AlertsService`, `schemas`, `tables`, `catalogue.RULES`.
"""
