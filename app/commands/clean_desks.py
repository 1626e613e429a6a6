"""Where `tierkeeper plan` and `clean` have their work done: on the data directory, or by a panel through its API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from app.cleanup.schemas import FilterPlanInput
from app.commands.context import COMMAND_PRINCIPAL
from app.commands.remote_panel import RemotePanel
from app.paging import parse_id
from app.services import Services


class Panel(Protocol):
    """Where the work is done: this process or a panel. Answers are as the API gives them."""

    def policy_id(self, name_or_id: str) -> str: ...

    def store_id(self, name_or_id: str) -> str: ...

    def plan_policy(self, policy_id: str) -> dict[str, Any]: ...

    def plan_filter(self, store_id: str, body: FilterPlanInput) -> dict[str, Any]: ...

    def run_policy(self, policy_id: str) -> dict[str, Any]: ...

    def run_plan(self, plan_id: str) -> dict[str, Any]: ...

    def get_plan(self, plan_id: str) -> dict[str, Any]: ...

    def get_run(self, run_id: str) -> dict[str, Any]: ...

    def cancel(self, kind: str, work_id: str) -> None: ...

    def plan_records(self, plan_id: str) -> Iterator[dict[str, Any]]: ...

    def purge_due(self) -> int: ...


class LocalDesk:
    """The data directory."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._cleanup = services.cleanup

    def policy_id(self, name_or_id: str) -> str:
        return str(self._cleanup.find_policy(name_or_id))

    def store_id(self, name_or_id: str) -> str:
        return str(self._services.fleet.find("store", name_or_id))

    def plan_policy(self, policy_id: str) -> dict[str, Any]:
        return self._cleanup.start_policy_plan(int(policy_id), actor=COMMAND_PRINCIPAL.actor).model_dump()

    def plan_filter(self, store_id: str, body: FilterPlanInput) -> dict[str, Any]:
        return self._cleanup.start_filter_plan(int(store_id), body, actor=COMMAND_PRINCIPAL.actor).model_dump()

    def run_policy(self, policy_id: str) -> dict[str, Any]:
        return self._cleanup.start_policy_run(int(policy_id), actor=COMMAND_PRINCIPAL.actor).model_dump()

    def run_plan(self, plan_id: str) -> dict[str, Any]:
        return self._cleanup.start_run(parse_id("plan", plan_id), actor=COMMAND_PRINCIPAL.actor).model_dump()

    def get_plan(self, plan_id: str) -> dict[str, Any]:
        return self._cleanup.get_plan(int(plan_id)).model_dump()

    def get_run(self, run_id: str) -> dict[str, Any]:
        return self._cleanup.get_run(int(run_id)).model_dump()

    def plan_records(self, plan_id: str) -> Iterator[dict[str, Any]]:
        token: str | None = None
        while True:
            page = self._cleanup.plan_records(int(plan_id), page_size=500, page_token=token)
            yield from (item.model_dump(by_alias=True) for item in page.items)
            token = page.next_page_token
            if token is None:
                return

    def purge_due(self) -> int:
        return self._cleanup.purge_expired(self._services.clock())

    def cancel(self, kind: str, work_id: str) -> None:
        if kind == "plan":
            self._cleanup.cancel_plan(int(work_id), actor=COMMAND_PRINCIPAL.actor)
        else:
            self._cleanup.cancel_run(int(work_id), actor=COMMAND_PRINCIPAL.actor)


class RemoteDesk:
    """A panel, through its API."""

    def __init__(self, panel: RemotePanel) -> None:
        self._panel = panel

    def policy_id(self, name_or_id: str) -> str:
        return self._panel.find("/policies", "policy", name_or_id)

    def store_id(self, name_or_id: str) -> str:
        return self._panel.find("/stores", "store", name_or_id)

    def plan_policy(self, policy_id: str) -> dict[str, Any]:
        return self._call("POST", f"/policies/{policy_id}/plans")

    def plan_filter(self, store_id: str, body: FilterPlanInput) -> dict[str, Any]:
        return self._call("POST", f"/stores/{store_id}/plans", json=body.model_dump())

    def run_policy(self, policy_id: str) -> dict[str, Any]:
        return self._call("POST", f"/policies/{policy_id}/runs")

    def run_plan(self, plan_id: str) -> dict[str, Any]:
        return self._call("POST", f"/plans/{plan_id}/runs")

    def get_plan(self, plan_id: str) -> dict[str, Any]:
        return self._call("GET", f"/plans/{plan_id}")

    def get_run(self, run_id: str) -> dict[str, Any]:
        return self._call("GET", f"/cleanup-runs/{run_id}")

    def cancel(self, kind: str, work_id: str) -> None:
        self._panel.call("POST", f"/{'plans' if kind == 'plan' else 'cleanup-runs'}/{work_id}/cancel")

    def plan_records(self, plan_id: str) -> Iterator[dict[str, Any]]:
        return self._panel.items(f"/plans/{plan_id}/records")

    def purge_due(self) -> int:
        return 0  # the panel there does it by itself

    def _call(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._panel.call(method, path, **given)
        return found
