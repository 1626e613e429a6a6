"""Launch commands: from a form or a registered pair to command lines, containers and unit files that fit each other.

Public: `service.LaunchService`, `schemas`. Everything else is pure text; nothing is ever run.
"""
