"""The CronJobs under deploy/: what they say is what the command, its settings and the image know; run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cleanup.schemas import PolicyInput
from app.fleet.targets_reading import read
from app.settings import Settings
from tests.support.panel import running_panel
from tests.unit.cleanup.support import name_of

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "deploy" / "kubernetes"
#: What Kubernetes injects beside a service named tierkeeper.
INJECTED = {"TIERKEEPER_SERVICE_HOST": "10.0.0.1", "TIERKEEPER_PORT": "tcp://10.0.0.1:8090"}


def documents(name: str) -> dict[str, Any]:
    found = yaml.safe_load_all((MANIFESTS / name).read_text("utf-8"))
    return {document["kind"]: document for document in found}


def pod_of(name: str) -> dict[str, Any]:
    cron = documents(name)["CronJob"]
    assert cron["apiVersion"] == "batch/v1"
    assert cron["spec"]["concurrencyPolicy"] == "Forbid"
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def run(container: dict[str, Any], env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """The container's command with these variables and nothing else of ours; `tierkeeper` is `python -m app`."""
    program, *arguments = container["command"]
    assert program == "tierkeeper"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TIERKEEPER_")}
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        env={**inherited, "PYTHONPATH": str(ROOT), **INJECTED, **env},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def damaged(path: Path, count: int) -> None:
    path.mkdir(exist_ok=True)
    for number in range(count):
        file = path / name_of(number).decode()
        file.write_bytes(b"")
        os.utime(file, (time.time() - 7200, time.time() - 7200))


@pytest.mark.parametrize("name", ["cleanup-cronjob.yaml", "cleanup-cronjob-alone.yaml"])
def test_the_pod_can_start_and_its_variables_are_known(name: str) -> None:
    pod = pod_of(name)
    (container,) = pod["containers"]
    security = {**pod.get("securityContext", {}), **container["securityContext"]}
    image_user = re.search(r"useradd --uid (\d+)", (ROOT / "Dockerfile").read_text("utf-8"))
    assert image_user is not None
    # runAsNonRoot refuses an image whose USER is a name, unless the pod gives a number.
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, int(image_user[1]))
    known = {f"TIERKEEPER_{field.upper()}" for field in Settings.model_fields}
    known |= {"TIERKEEPER_URL", "TIERKEEPER_TOKEN"}
    assert {e["name"] for e in container["env"]} <= known
    mounted = {m["name"] for m in container.get("volumeMounts", ())}
    assert mounted == {v["name"] for v in pod.get("volumes", ())}


def test_what_the_lone_job_is_told_lies_where_it_is_mounted(tmp_path: Path) -> None:
    (container,) = pod_of("cleanup-cronjob-alone.yaml")["containers"]
    mounts = [m["mountPath"] for m in container["volumeMounts"]]
    for variable in container["env"]:
        assert any(variable["value"] == m or variable["value"].startswith(f"{m}/") for m in mounts), variable
    config = documents("cleanup-cronjob-alone.yaml")["ConfigMap"]
    (tmp_path / "targets.yaml").write_text(config["data"]["targets.yaml"], "utf-8")
    declared, _ = read(tmp_path / "targets.yaml")
    assert {store.path for store in declared.stores} <= set(mounts)
    wanted = container["command"][container["command"].index("--policy") + 1]
    assert wanted in {policy["name"] for policy in declared.policies}


@pytest.mark.timeout(600)
def test_the_job_beside_a_panel(tmp_path: Path) -> None:
    damaged(tmp_path / "l2", 3)
    (container,) = pod_of("cleanup-cronjob.yaml")["containers"]
    with running_panel(tmp_path / "var") as panel:
        client = panel.client()
        body = {"path": str(tmp_path / "l2"), "name": "l2", "confirm": True}
        store = client.post("/api/v1/stores", json=body).json()
        preset = next(p for p in panel.services.cleanup.presets() if p.id == "keep_it_safe")
        panel.services.cleanup.create_policy(PolicyInput(store_id=store["id"], **preset.policy), actor="test")
        token = client.headers["authorization"].removeprefix("Bearer ")
        env = {"TIERKEEPER_URL": panel.url, "TIERKEEPER_TOKEN": token}
        assert set(env) == {e["name"] for e in container["env"]}
        here = tmp_path / "empty"
        here.mkdir()
        done = run(container, env, here)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["removed"]["records"] == 3
        assert list((tmp_path / "l2").glob("*.data")) == []
        assert list(here.iterdir()) == []  # its root file system is read-only
    assert run(container, env, here).returncode == 3  # nobody answers there any more


@pytest.mark.timeout(600)
def test_the_lone_job_cleans_a_volume_that_no_panel_has_seen(tmp_path: Path) -> None:
    damaged(tmp_path / "l2", 4)
    (container,) = pod_of("cleanup-cronjob-alone.yaml")["containers"]
    text = documents("cleanup-cronjob-alone.yaml")["ConfigMap"]["data"]["targets.yaml"]
    targets = tmp_path / "targets.yaml"
    high = text.replace("85%", "99%").replace("70%", "98%")  # wherever this runs
    targets.write_text(high.replace("/srv/kv/l2", str(tmp_path / "l2")), "utf-8")
    env = {"TIERKEEPER_DATA_DIR": str(tmp_path / "data"), "TIERKEEPER_TARGETS_FILE": str(targets)}
    assert set(env) == {e["name"] for e in container["env"]}
    here = tmp_path / "empty"
    here.mkdir()
    done = run(container, env, here)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["verdict"], told["removed"]["records"]) == ("succeeded", 4)
    assert list((tmp_path / "l2").glob("*.data")) == []
    assert list(here.iterdir()) == []
    targets.write_text(high.replace("/srv/kv/l2", str(tmp_path / "away")), "utf-8")
    assert run(container, env, here).returncode in (2, 3)  # the volume is not there: not a success
