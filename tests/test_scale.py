"""examples/k3s/: a manifest that fits the daemon it runs.

No cluster is asked. What is checked is what would be wrong on any: names that refer to nothing, paths, ports, times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from edge_runtime.config import Config, host_and_port, read_config
from edge_runtime.server.app import create_app
from edge_runtime.server.service import Service, Standing

ROOT = Path(__file__).parent.parent
MANIFEST = ROOT / "examples/k3s/edge-runtime.yaml"
GIB = 1 << 30


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """By kind."""
    found = [one for one in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")) if one]
    assert len({one["kind"] for one in found}) == len(found)
    return {one["kind"]: one for one in found}


@pytest.fixture(scope="module")
def pod(objects: dict[str, Any]) -> dict[str, Any]:
    return dict(objects["DaemonSet"]["spec"]["template"]["spec"])


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (one,) = pod["containers"]
    return dict(one)


@pytest.fixture(scope="module")
def config(objects: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Of the map, as the daemon reads it."""
    place = tmp_path_factory.mktemp("config") / "config.yaml"
    place.write_text(objects["ConfigMap"]["data"]["config.yaml"], encoding="utf-8")
    return read_config(place)


def test_objects_belong_together(objects: dict[str, Any], pod: dict[str, Any], container: dict[str, Any]) -> None:
    versions = {
        "Namespace": "v1", "ConfigMap": "v1", "DaemonSet": "apps/v1", "Service": "v1",
        "NetworkPolicy": "networking.k8s.io/v1",
    }  # fmt: skip
    assert {kind: one["apiVersion"] for kind, one in objects.items()} == versions
    space = objects["Namespace"]["metadata"]["name"]
    assert {one["metadata"].get("namespace", space) for one in objects.values()} == {space}
    spec = objects["DaemonSet"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    for selector in (
        spec["selector"]["matchLabels"],
        objects["Service"]["spec"]["selector"],
        objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} == set(volumes)
    assert volumes["config"]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    assert pod["runtimeClassName"] == "nvidia" and pod["nodeSelector"]["kubernetes.io/arch"] == "arm64"


def test_the_daemon_finds_what_its_configuration_names(
    pod: dict[str, Any], container: dict[str, Any], config: Config
) -> None:
    volumes = {one["name"]: one for one in pod["volumes"]}
    mounts = {one["mountPath"]: (volumes[one["name"]], one.get("readOnly", False)) for one in container["volumeMounts"]}

    def mount_of(path: str) -> tuple[Any, bool]:
        return mounts[max((place for place in mounts if Path(path).is_relative_to(place)), key=len)]

    assert container["args"][:2] == ["serve", "--config"]
    assert mount_of(container["args"][2])[0]["configMap"]
    for path, read_only in ((config.bundle, True), (config.server.socket, False)):
        volume, held = mount_of(path)
        # The same place inside and outside, and a directory: what is in it may be replaced.
        assert held == read_only and volume["hostPath"]["type"] == "Directory"
        assert Path(path).is_relative_to(volume["hostPath"]["path"]) and path != volume["hostPath"]["path"]
    assert mounts["/host/devicetree"][0]["hostPath"]["path"] == "/sys/firmware/devicetree/base"
    assert "emptyDir" in mounts["/tmp"][0] and container["securityContext"]["readOnlyRootFilesystem"]
    written = {"/tmp", str(Path(config.server.socket).parent)}
    assert all(held for place, (_, held) in mounts.items() if place not in written)


def test_probes_and_scraping_ask_what_there_is(
    objects: dict[str, Any], container: dict[str, Any], config: Config
) -> None:
    assert config.server.tcp is not None
    host, port = host_and_port(config.server.tcp, "server.tcp")
    assert host == "0.0.0.0"
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    app = create_app(Service(config, Standing("loading")))
    paths = {getattr(one, "path", "") for one in app.routes}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[name]["httpGet"]
        assert ports[asked["port"]] == port and asked["path"] in paths
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    # A daemon that refuses is not one to restart.
    assert container["livenessProbe"]["httpGet"]["path"] != "/health"
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600  # as of the image's HEALTHCHECK
    notes = objects["DaemonSet"]["spec"]["template"]["metadata"]["annotations"]
    assert notes == {
        "prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/metrics",
    }  # fmt: skip
    assert "/metrics" in paths
    (service,) = objects["Service"]["spec"]["ports"]
    assert service["targetPort"] in ports and objects["Service"]["spec"]["internalTrafficPolicy"] == "Local"
    (rule,) = objects["NetworkPolicy"]["spec"]["ingress"]
    assert [one["port"] for one in rule["ports"]] == [service["targetPort"]] and rule["from"]


def test_limits_leave_the_daemon_its_budget_and_its_time(
    pod: dict[str, Any], container: dict[str, Any], config: Config
) -> None:
    limit = container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"]["memory"] == limit and limit.endswith("Gi")
    assert config.budget.memory_bytes is not None
    assert config.budget.memory_bytes < int(limit[:-2]) * GIB
    assert pod["terminationGracePeriodSeconds"] > config.drain_s
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
