"""The files that a cluster is started from: valid, in step with the code and with one another."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.deploy.autoscale import Rules
from shoal.deploy.cluster import LIVE
from shoal.deploy.haproxy import VOICE_MAP, haproxy_environment
from shoal.deploy.settings import replica_settings
from shoal.engine.api import EngineStats
from shoal.realtime.metrics import Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVE = ("cluster.yaml", "laptop.yaml")
KUBERNETES = "1.36"
NATIVE = {"ConfigMap", "Deployment", "PriorityClass"}
RAY_SERVICE = {
    "serviceUnhealthySecondThreshold",
    "deploymentUnhealthySecondThreshold",
    "upgradeStrategy",
    "serveConfigV2",
    "rayClusterConfig",
}
RAY_CLUSTER = {
    "rayVersion",
    "enableInTreeAutoscaling",
    "autoscalerOptions",
    "headGroupSpec",
    "workerGroupSpecs",
}
RAY_GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def serve_config(name: str) -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / name).read_text())


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted([*DEPLOY.glob("kuberay/*.yaml"), *DEPLOY.glob("keda/*.yaml")]):
        for document in yaml.safe_load_all(file.read_text()):
            yield f"{file.name}:{document['kind']}", document


def manifest(kind: str) -> dict[str, Any]:
    return next(document for _, document in manifests() if document["kind"] == kind)


def groups() -> list[dict[str, Any]]:
    ray_cluster = manifest("RayService")["spec"]["rayClusterConfig"]
    return [ray_cluster["headGroupSpec"], *ray_cluster["workerGroupSpecs"]]


@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.parametrize("name", SERVE)
def test_ray_takes_the_serve_configs(name: str) -> None:
    pytest.importorskip("ray")
    from ray.serve.schema import ServeDeploySchema

    schema = ServeDeploySchema.model_validate(serve_config(name))
    assert schema.applications[0].import_path == "shoal.deploy.replica:app"
    with pytest.raises(ValueError, match="graceful"):
        broken = serve_config(name)
        broken["applications"][0]["deployments"][0]["graceful_shutdown_timeout_s"] = "soon"
        ServeDeploySchema.model_validate(broken)


@pytest.mark.parametrize("name", SERVE)
def test_the_serve_configs_fit_the_replica(name: str) -> None:
    app = serve_config(name)["applications"][0]
    deployment = app["deployments"][0]
    settings = replica_settings(app["args"])
    assert deployment["graceful_shutdown_timeout_s"] > settings.leave_s + settings.drain_s
    assert deployment["max_ongoing_requests"] >= settings.max_sockets, "Ray would refuse sockets"
    scaling = deployment.get("autoscaling_config")
    if scaling is not None:
        rules = Rules(**scaling["policy"]["policy_kwargs"])
        assert (rules.least, rules.most) == (scaling["min_replicas"], scaling["max_replicas"])


def test_the_ray_service_holds_the_serve_config_and_the_environment() -> None:
    service = manifest("RayService")
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == serve_config("cluster.yaml")
    voice_map = manifest("ConfigMap")["data"]["voice.map"]
    assert voice_map == VOICE_MAP.read_text()
    settings = replica_settings(serve_config("cluster.yaml")["applications"][0]["args"])
    expected = haproxy_environment(voice_map=Path("/opt/shoal/voice.map"), drain_s=settings.leave_s)
    for group in groups()[:2]:
        container = group["template"]["spec"]["containers"][0]
        assert {pair["name"]: pair["value"] for pair in container["env"]} == expected
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert places["voice-map"] == "/opt/shoal"


@pytest.mark.parametrize(
    "document",
    [pytest.param(found, id=name) for name, found in manifests() if found["kind"] in NATIVE],
)
def test_kubernetes_takes_what_is_its_own(document: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("index", range(3))
def test_kubernetes_takes_the_pods_of_the_ray_service(index: int) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    template = groups()[index]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **template}
    validate.validate(pod, KUBERNETES, strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate({**pod, "spec": {"container": []}}, KUBERNETES, strict=True)


def test_the_ray_service_has_only_fields_that_there_are() -> None:
    spec = manifest("RayService")["spec"]
    assert set(spec) == RAY_SERVICE
    assert set(spec["rayClusterConfig"]) == RAY_CLUSTER
    for group in groups():
        assert set(group) <= RAY_GROUP


def test_every_priority_class_that_is_named_is_there_and_live_turns_win() -> None:
    classes = {
        document["metadata"]["name"]: document
        for _, document in manifests()
        if document["kind"] == "PriorityClass"
    }
    text = "".join(file.read_text() for file in DEPLOY.glob("k*/*.yaml"))
    assert set(re.findall(r"priorityClassName: (\S+)", text)) == set(classes)
    live, backfill = classes["shoal-live"], classes["shoal-backfill"]
    assert live["value"] > 0 > backfill["value"]
    assert backfill["preemptionPolicy"] == "Never"


def test_replicas_are_placed_only_on_nodes_that_stay() -> None:
    """A preemptible node has the GPU and the CPUs of any other, and lacks one thing."""
    asked = serve_config("cluster.yaml")["applications"][0]["deployments"][0]["ray_actor_options"]
    assert 0 < asked["resources"][LIVE] <= 1 / 16, "a node of many GPUs has one for all of them"
    there: dict[str, list[str]] = {}
    for group in groups()[1:]:
        given = group["rayStartParams"].get("resources", '"{}"')
        stays = json.loads(json.loads(given)).get(LIVE, 0) >= 1
        priority = group["template"]["spec"]["priorityClassName"]
        assert stays == (priority == "shoal-live"), group["groupName"]
        there.setdefault(priority, []).append(group["groupName"])
    assert set(there) == {"shoal-live", "shoal-backfill"}


def test_nothing_holds_batch_workers_to_the_nodes_that_stay() -> None:
    pytest.importorskip("ray")
    from shoal.deploy.backlog import shape_of, worker_options

    asked = serve_config("cluster.yaml")["applications"][0]["deployments"][0]["ray_actor_options"]
    assert LIVE in shape_of(asked)
    assert shape_of(worker_options(asked)) == {"CPU": 4.0, "GPU": 1.0}
    other = {"num_gpus": 1, "resources": {LIVE: 0.1, "h200": 0.5}}
    assert worker_options(other) == {"num_gpus": 1, "resources": {"h200": 0.5}}
    assert shape_of(worker_options({"num_cpus": 0.3})) == {"CPU": 0.3}


def test_every_node_of_a_slurm_job_may_hold_replicas() -> None:
    script = (DEPLOY / "slurm" / "shoal.sbatch").read_text().replace("\\\n", " ")
    assert f"STAYS='{json.dumps({LIVE: 1})}'" in script
    starts = [line for line in script.splitlines() if '/ray" start' in line]
    assert len(starts) == 2
    assert all('--resources="$STAYS"' in line for line in starts)


def test_prometheus_has_every_metric_that_keda_asks_for() -> None:
    page = Metrics(EngineStats, 4).page().decode()
    there = set(re.findall(r"^# TYPE (\S+)", page, re.M))
    for trigger in manifest("ScaledObject")["spec"]["triggers"]:
        asked = set(re.findall(r"shoal_\w+", trigger["metadata"]["query"]))
        assert asked
        assert {re.sub(r"_(bucket|count)$", "", name) for name in asked} <= there


def test_keda_and_the_policy_draw_the_same_lines() -> None:
    turns, trouble = manifest("ScaledObject")["spec"]["triggers"]
    rules = Rules(**_kwargs())
    settings = replica_settings(serve_config("cluster.yaml")["applications"][0]["args"])
    load = f"({rules.target_load:g} * {settings.safe_turns}) + {rules.spare}"
    assert load in turns["metadata"]["query"]
    assert f"{rules.start_s:g} * clamp_min" in turns["metadata"]["query"]
    query = trouble["metadata"]["query"]
    for limit in (
        f"bool {rules.step_limit:g} * 0.0464",
        f"bool {rules.queue_limit_s:g}",
        f"bool {rules.gap_limit:g}",
        f"{1 + rules.pressure_share:g} * count",
    ):
        assert limit in query
    assert query.count("(") == query.count(")")


def test_every_turn_that_is_let_in_has_a_slot() -> None:
    settings = replica_settings(serve_config("cluster.yaml")["applications"][0]["args"])
    assert settings.slots is not None and settings.safe_turns is not None
    assert settings.safe_turns <= settings.slots
    (container,) = manifest("Deployment")["spec"]["template"]["spec"]["containers"]
    command = container["command"]
    assert command[command.index("--slots") + 1] == str(settings.slots)


def _kwargs() -> dict[str, Any]:
    deployment = serve_config("cluster.yaml")["applications"][0]["deployments"][0]
    return deployment["autoscaling_config"]["policy"]["policy_kwargs"]


def test_bash_takes_the_slurm_script() -> None:
    script = DEPLOY / "slurm" / "shoal.sbatch"
    assert subprocess.run(["bash", "-n", script], timeout=10).returncode == 0


@pytest.mark.parametrize(
    ("url", "voice"),
    [
        ("/v1/tts/live?reference_id=anna", "anna"),
        ("/v1/tts/live?pool=1&reference_id=a.b-c_1&x=2", "a.b-c_1"),
        ("/v1/text-to-speech/bert/stream-input?model_id=m", "bert"),
        ("/v1/speak?encoding=linear16&model=aura-2", "aura-2"),
        ("/v1/tts/live?model=s1", None),
        ("/v1/tts/live", None),
        ("/metrics", None),
    ],
)
def test_the_map_finds_the_voice_in_a_url(url: str, voice: str | None) -> None:
    found = None
    for line in VOICE_MAP.read_text().splitlines():
        if line.startswith("#"):
            continue
        pattern, replacement = line.split()
        assert replacement == "\\1"
        if match := re.search(pattern, url):
            found = match[1]
            break
    assert found == voice
