"""The manifests of deploy/kubernetes are valid, and agree with each other and with the code."""

from __future__ import annotations

import inspect
import json
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from longwatch.app.plans import EXTRA_GRACE
from longwatch.app.runner_plan import EXTRA_GRACE as RUNNER_EXTRA_GRACE
from longwatch.config.runner import (
    DEFAULT_HEALTH_PORT,
    DEFAULT_METRICS_PORT,
    AgentSettings,
    RunnerSettings,
)
from longwatch.config.settings import load_settings
from longwatch.runtime import LoopGroup
from markdown_files import ROOT, Page
from requires import skip_without_program

DIRECTORY = ROOT / "deploy" / "kubernetes"
CLI_TREE = Path(__file__).with_name("cli_tree.py")
OLDEST_VERSION = "1.30"
CUSTOM_KINDS = {"PodMonitor", "Kustomization"}
"""Kinds that no Kubernetes release defines."""
RUNNER_PORTS = {"health": DEFAULT_HEALTH_PORT, "metrics": DEFAULT_METRICS_PORT}
PROBES = {
    "livenessProbe": ("/health/live", 10, 10, 3),
    "readinessProbe": ("/health/ready", 5, 5, 2),
}
"""Path, initialDelaySeconds, periodSeconds and failureThreshold."""

Manifest = dict[str, Any]


def read(path: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


FILES = {path: read(path) for path in sorted(DIRECTORY.rglob("*.yaml"))}
MANIFESTS = [manifest for found in FILES.values() for manifest in found]


def of_kind(*kinds: str) -> list[Manifest]:
    return [manifest for manifest in MANIFESTS if manifest["kind"] in kinds]


def named(manifest: Manifest) -> str:
    return f"{manifest['kind']}-{manifest.get('metadata', {}).get('name', '')}"


def one(kind: str, name: str) -> Manifest:
    [found] = [each for each in of_kind(kind) if each["metadata"]["name"] == name]
    return found


def pod(manifest: Manifest) -> Manifest:
    spec: Manifest = manifest["spec"]["template"]["spec"]
    return spec


def container(manifest: Manifest) -> Manifest:
    [found] = pod(manifest)["containers"]
    only: Manifest = found
    return only


WORKERS = one("Deployment", "longwatch-workers")
RUNNER = one("Deployment", "longwatch-runner")
each_with_pods = pytest.mark.parametrize("manifest", of_kind("Deployment", "Job"), ids=named)
each_deployment = pytest.mark.parametrize("manifest", of_kind("Deployment"), ids=named)
each_pod_monitor = pytest.mark.parametrize("manifest", of_kind("PodMonitor"), ids=named)


# --- valid ---


@pytest.mark.parametrize("version", [OLDEST_VERSION, kubernetes_validate.latest_version()])
@pytest.mark.parametrize(
    "manifest", [each for each in MANIFESTS if each["kind"] not in CUSTOM_KINDS], ids=named
)
def test_a_manifest_is_valid_and_has_no_unknown_field(manifest: Manifest, version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


@each_pod_monitor
def test_a_pod_monitor_selects_the_pods_of_one_deployment_and_a_port_that_they_have(
    manifest: Manifest,
) -> None:
    """It is of a custom kind, so its fields are compared with those of its definition."""
    assert {"apiVersion", "kind", "metadata", "spec"} == manifest.keys()
    assert "monitoring.coreos.com/v1" == manifest["apiVersion"]
    spec = manifest["spec"]
    assert {"selector", "podMetricsEndpoints"} <= spec.keys()
    assert spec.keys() <= {"selector", "podMetricsEndpoints", "jobLabel"}
    [endpoint] = spec["podMetricsEndpoints"]
    assert endpoint.keys() <= {"port", "path", "interval", "scrapeTimeout", "honorLabels"}
    [selected] = [
        each
        for each in of_kind("Deployment")
        if spec["selector"]["matchLabels"].items() <= labels_of_pods(each).items()
    ]
    ports = {port["name"] for port in container(selected)["ports"]}
    assert ("/metrics", True) == (endpoint["path"], endpoint["port"] in ports)
    assert "jobLabel" not in spec or spec["jobLabel"] in labels_of_pods(selected)


def labels_of_pods(manifest: Manifest) -> dict[str, str]:
    labels: dict[str, str] = manifest["spec"]["template"]["metadata"]["labels"]
    return labels


def test_each_file_is_in_the_kustomization_of_its_directory() -> None:
    for path in DIRECTORY.rglob("kustomization.yaml"):
        [kustomization] = FILES[path]
        beside = {each.name for each in path.parent.glob("*.yaml")} - {path.name}
        assert sorted(beside) == sorted(kustomization["resources"])
        for generated in kustomization.get("configMapGenerator", []):
            assert [True] == [(path.parent / name).exists() for name in generated["files"]]


@pytest.mark.parametrize(
    "directory", [DIRECTORY, DIRECTORY / "migrate"], ids=lambda path: path.name
)
def test_kustomize_builds_every_manifest_with_your_image(directory: Path) -> None:
    skip_without_program("kubectl", "the build of the kustomizations")
    command = ["kubectl", "kustomize", str(directory)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    built = list(yaml.safe_load_all(done.stdout))
    generated = {"ConfigMap"} if directory == DIRECTORY else set()
    expected = [
        each["kind"]
        for path, manifests in FILES.items()
        if path.parent == directory and path.name != "kustomization.yaml"
        for each in manifests
    ]
    assert sorted([*expected, *generated]) == sorted(each["kind"] for each in built)
    images = {container(each)["image"] for each in built if "template" in each.get("spec", {})}
    assert {"registry.example/longwatch-app:1"} == images


@each_with_pods
def test_the_arguments_are_a_command_line_of_longwatch(
    manifest: Manifest, wheel_python: Path
) -> None:
    assert "command" not in container(manifest), "the entry point of the image is longwatch"
    line = json.dumps(container(manifest)["args"])
    done = subprocess.run(
        [wheel_python, CLI_TREE, line], check=True, capture_output=True, text=True, timeout=60
    )
    assert [None] == json.loads(done.stdout)


# --- consistent ---


@each_deployment
def test_the_selector_matches_the_labels_of_the_pods(manifest: Manifest) -> None:
    selector = manifest["spec"]["selector"]["matchLabels"]
    assert selector.items() <= labels_of_pods(manifest).items()


def test_a_disruption_takes_one_worker_pod_at_a_time() -> None:
    budget = one("PodDisruptionBudget", "longwatch-workers")["spec"]
    assert 1 == budget["maxUnavailable"]
    assert WORKERS["spec"]["selector"] == budget["selector"]
    assert WORKERS["spec"]["replicas"] > budget["maxUnavailable"]


@each_with_pods
def test_a_pod_is_hardened(manifest: Manifest) -> None:
    spec, security = pod(manifest), container(manifest)["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert 10001 == spec["securityContext"]["runAsUser"], "the user of deploy/docker/Dockerfile"
    assert "USER 10001:10001" in (ROOT / "deploy/docker/Dockerfile").read_text().splitlines()
    assert spec["automountServiceAccountToken"] is False
    assert security["readOnlyRootFilesystem"]
    assert (False, ["ALL"]) == (
        security["allowPrivilegeEscalation"],
        security["capabilities"]["drop"],
    )
    resources = container(manifest)["resources"]
    assert ({"cpu", "memory"}, {"memory"}) == (
        resources["requests"].keys(),
        resources["limits"].keys(),
    )


@each_deployment
def test_every_mount_is_a_volume_and_every_volume_is_mounted(manifest: Manifest) -> None:
    mounted = [mount["name"] for mount in container(manifest)["volumeMounts"]]
    assert sorted(mounted) == sorted(volume["name"] for volume in pod(manifest)["volumes"])


@each_with_pods
def test_the_url_of_the_store_comes_from_the_secret(manifest: Manifest) -> None:
    """Worker processes do not inherit LONGWATCH_STORE, so their code reads STORE_URL."""
    references = {
        each["name"]: each["valueFrom"]["secretKeyRef"]
        for each in container(manifest)["env"]
        if "valueFrom" in each
    }
    names = {
        "longwatch-workers": {"STORE_URL", "LONGWATCH_STORE"},
        "longwatch-runner": {"LONGWATCH_RUNNER_STORE_URL"},
    }
    assert names.get(manifest["metadata"]["name"], {"LONGWATCH_STORE"}) == references.keys()
    assert [{"name": "longwatch-store", "key": "url"}] * len(references) == [*references.values()]


def variable(manifest: Manifest, name: str) -> str:
    [value] = [each["value"] for each in container(manifest)["env"] if each["name"] == name]
    assert isinstance(value, str)
    return value


def option(manifest: Manifest, name: str) -> str:
    [value] = [
        word.partition("=")[2]
        for word in container(manifest)["args"]
        if word.startswith(f"{name}=")
    ]
    assert isinstance(value, str)
    return value


def mount_above(manifest: Manifest, path: str) -> str:
    """The volume that this path is below of; it is not the volume itself."""
    [name] = [
        mount["name"]
        for mount in container(manifest)["volumeMounts"]
        if Path(mount["mountPath"]) in Path(path).parents
    ]
    assert isinstance(name, str)
    return name


def test_every_state_directory_is_below_a_volume_and_not_a_volume() -> None:
    """Longwatch refuses a directory that every user can write to."""
    assert "state" == mount_above(WORKERS, option(WORKERS, "--state-dir"))
    assert "data" == mount_above(RUNNER, variable(RUNNER, "LONGWATCH_STATE_DIR"))
    for manifest in (WORKERS, RUNNER):
        assert "run" == mount_above(manifest, variable(manifest, "XDG_RUNTIME_DIR") + "/sockets")


def test_the_runner_is_alone_on_its_volume() -> None:
    spec = RUNNER["spec"]
    assert (1, "Recreate") == (spec["replicas"], spec["strategy"]["type"])


def test_the_settings_of_the_runner_have_no_fault_and_name_mounted_files() -> None:
    [generated] = FILES[DIRECTORY / "kustomization.yaml"][0]["configMapGenerator"]
    assert [{"name": "config", "configMap": {"name": generated["name"]}}] == [
        volume for volume in pod(RUNNER)["volumes"] if "configMap" in volume
    ]
    config = option(RUNNER, "--config")
    assert ("config", generated["files"]) == (mount_above(RUNNER, config), [Path(config).name])
    settings = load_settings(path=DIRECTORY / Path(config).name, environ={}, flags={})
    assert settings.runner is not None
    assert "data" == mount_above(RUNNER, str(settings.runner.agent.workspace))
    [source] = settings.runner.source.values()
    assert "token" == mount_above(RUNNER, str(source.token_file))


# --- the numbers ---


@each_deployment
def test_the_probes_have_the_numbers_of_the_guide(manifest: Manifest) -> None:
    found = container(manifest)
    assert PROBES == {
        kind: (
            found[kind]["httpGet"]["path"],
            *(
                found[kind][key]
                for key in ("initialDelaySeconds", "periodSeconds", "failureThreshold")
            ),
        )
        for kind in PROBES
    }
    assert {"health"} == {found[kind]["httpGet"]["port"] for kind in (*PROBES, "startupProbe")}


def test_the_ports_are_those_of_the_programs() -> None:
    [port] = container(WORKERS)["ports"]
    assert ("health", option(WORKERS, "--health-port")) == (
        port["name"],
        str(port["containerPort"]),
    )
    ports = {each["name"]: each["containerPort"] for each in container(RUNNER)["ports"]}
    assert RUNNER_PORTS == ports


def test_a_worker_pod_has_time_to_finish_its_messages() -> None:
    shutdown = inspect.signature(LoopGroup).parameters["shutdown_timeout"].default
    assert pod(WORKERS)["terminationGracePeriodSeconds"] > shutdown + EXTRA_GRACE


def test_a_runner_pod_has_time_to_finish_its_runs() -> None:
    agent = inspect.signature(AgentSettings).parameters["stop_grace"].default
    runner = inspect.signature(RunnerSettings).parameters["shutdown_timeout"].default
    grace = pod(RUNNER)["terminationGracePeriodSeconds"]
    assert grace > runner + agent + RUNNER_EXTRA_GRACE


@pytest.mark.parametrize("manifest", of_kind("Job"), ids=named)
def test_the_migration_runs_to_its_end_and_once(manifest: Manifest) -> None:
    assert "Never" == pod(manifest)["restartPolicy"]
    assert ["db", "migrate"] == container(manifest)["args"]


# --- the documentation ---


def test_the_guide_shows_the_probes_of_the_manifest() -> None:
    page = Page.read(ROOT / "docs" / "how-to" / "kubernetes-probes.md")
    [shown] = [block.text for block in page.blocks if block.info[:1] == ("yaml",)]
    wanted = yaml.safe_load(shown)
    assert wanted == {key: container(WORKERS)[key] for key in wanted}
    assert {*PROBES, "startupProbe"} <= wanted.keys()
