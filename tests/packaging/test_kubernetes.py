"""The manifests for Kubernetes: valid, hardened, and in agreement with each other, the container and the daemon."""

import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from headrace.adapters.jsonl.settings import JsonlSinkSettings
from headrace.http.hosts import Hosts
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import Settings
from tests.configured import load
from tests.containerfile import AWAY, FILE, final
from tests.support import DaemonProcess, eventually

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging/kubernetes"
BASE, SIDECAR, ZOOKEEPER = FOLDER / "base", FOLDER / "sidecar", FOLDER / "zookeeper"
WHOLE = (BASE, SIDECAR)
"""Folders whose files are whole manifests; the other has patches of the first."""
SECRET = "headrace-secrets"
"""What the comments have the operator make."""
EVERY = pytest.mark.parametrize("folder", WHOLE, ids=lambda folder: folder.name)


def document(file: Path) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load(file.read_text())
    return made


def kustomization(folder: Path) -> dict[str, Any]:
    return document(folder / "kustomization.yaml")


def pod(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = document(folder / "deployment.yaml")["spec"]["template"]["spec"]
    return made


def containers(folder: Path) -> list[dict[str, Any]]:
    return [*pod(folder).get("initContainers", []), *pod(folder)["containers"]]


def daemon(folder: Path) -> dict[str, Any]:
    (found,) = [one for one in containers(folder) if one["image"] == "headrace"]
    return found


def seen_by_the_daemon(folder: Path, root: Path, config: Path | None = None) -> Path:
    """Puts the files where the pod has them, below `root`; its headrace.toml. `config` is another one to take."""
    generated = {one["name"]: one["files"] for one in kustomization(folder)["configMapGenerator"]}
    volumes = {one["name"]: one for one in pod(folder)["volumes"]}
    for mount in daemon(folder)["volumeMounts"]:
        volume, target = volumes[mount["name"]], root / mount["mountPath"].lstrip("/")
        if "configMap" in volume:
            for file in generated[volume["configMap"]["name"]]:
                to = target if mount.get("subPath") == Path(file).name else target / Path(file).name
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(config if config and Path(file).name == config.name else folder / file, to)
        elif "secret" in volume:
            target.mkdir(parents=True)
            (target / "shop-password").write_text("secret-4711")
    # Where the container's own start looks.
    return root / "etc/headrace/headrace.toml"


def answer(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def settings_of(folder: Path, root: Path, config: Path | None = None) -> Settings:
    settings = load(
        seen_by_the_daemon(folder, root, config), {"HEADRACE_NODE": "headrace-5d9c-x2v", "HEADRACE_NAMESPACE": "shop"}
    )
    assert settings.destinations["shop"].source.password.get_secret_value() == "secret-4711"
    return settings


@EVERY
def test_kubernetes_would_take_every_manifest(folder: Path) -> None:
    for name in kustomization(folder)["resources"]:
        made = document(folder / name)
        kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)
        if made["kind"] == "Deployment":
            labels, selector = made["spec"]["template"]["metadata"]["labels"], made["spec"]["selector"]["matchLabels"]
            assert selector.items() <= labels.items()


def test_the_service_finds_the_pods_and_their_port() -> None:
    service, deployment = document(BASE / "service.yaml")["spec"], document(BASE / "deployment.yaml")["spec"]
    assert service["selector"].items() <= deployment["template"]["metadata"]["labels"].items()
    assert {one["targetPort"] for one in service["ports"]} <= {one["name"] for one in daemon(BASE)["ports"]}


@pytest.mark.parametrize("config", [None, ZOOKEEPER / "headrace.toml"], ids=["base", "zookeeper"])
def test_the_daemon_answers_by_the_service_s_names(config: Path | None, tmp_path: Path) -> None:
    name = document(BASE / "service.yaml")["metadata"]["name"]
    hosts = Hosts("0.0.0.0", settings_of(BASE, tmp_path, config).http.allowed_hosts)
    for asked in (name, f"{name}.shop", f"{name}.shop.svc", f"{name}.shop.svc.cluster.local"):
        assert hosts.allows(f"{asked}:9180")
    # What a namespace is called may be what a registry sells names below.
    assert not hosts.allows(f"{name}.dev")
    given = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in daemon(BASE)["env"]}
    assert given["HEADRACE_NAMESPACE"] == "metadata.namespace"
    assert not hosts.allows("rebinding.example:9180")


def test_every_file_is_named_by_a_kustomization_and_is_there() -> None:
    for folder in FOLDER.iterdir():
        named = {"kustomization.yaml"}
        made = kustomization(folder)
        named |= {name for name in made["resources"] if not name.startswith("../")}
        named |= {one["path"] for one in made.get("patches", [])}
        named |= {file for one in made["configMapGenerator"] for file in one["files"]}
        assert named == {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}


@EVERY
def test_every_volume_is_mounted_and_has_what_it_refers_to(folder: Path) -> None:
    made = {one["name"] for one in kustomization(folder)["configMapGenerator"]}
    claims = {
        one["metadata"]["name"]
        for one in map(document, folder.glob("*.yaml"))
        if one.get("kind") == "PersistentVolumeClaim"
    }
    volumes = {one["name"]: one for one in pod(folder)["volumes"]}
    for volume in volumes.values():
        if "configMap" in volume:
            made.remove(volume["configMap"]["name"])
        elif "secret" in volume:
            assert volume["secret"]["secretName"] == SECRET
            assert f"create secret generic {SECRET} --from-file=" in (folder / "kustomization.yaml").read_text()
        elif "persistentVolumeClaim" in volume:
            claims.remove(volume["persistentVolumeClaim"]["claimName"])
        else:
            assert volume["emptyDir"]["sizeLimit"]
    assert (made, claims) == (set(), set())
    assert {mount["name"] for one in containers(folder) for mount in one["volumeMounts"]} == volumes.keys()


@EVERY
def test_no_container_can_become_root_or_change_its_image(folder: Path) -> None:
    user = pod(folder)["securityContext"]
    assert user["runAsNonRoot"] is True
    assert user["seccompProfile"] == {"type": "RuntimeDefault"}
    assert f"{user['runAsUser']}:{user['runAsGroup']}" == final("USER")
    assert user["fsGroup"] == user["runAsGroup"]
    assert pod(folder)["automountServiceAccountToken"] is False
    for one in containers(folder):
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert one["resources"]["requests"].keys() == {"cpu", "memory"}
        assert one["resources"]["limits"]["memory"]


@EVERY
def test_the_probes_ask_for_what_the_daemon_answers(folder: Path, tmp_path: Path) -> None:
    one = daemon(folder)
    probes = {name: one[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/livez",
        "liveness": "/livez",
        "readiness": "/readyz",
    }
    settings = settings_of(folder, tmp_path)
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    assert {ports[probe["port"]] for probe in probes.values()} == {int(final("EXPOSE"))}
    # The kubelet asks at the pod's address.
    assert settings.http.address == ("0.0.0.0", int(final("EXPOSE")))

    running = DaemonProcess(tmp_path / "daemon", {"shop": AWAY}).start()
    try:
        eventually(lambda: running.health()[0] == 503)
        answers = [answer(f"http://127.0.0.1:{running.port}{probe['path']}") for probe in probes.values()]
        assert answers == [200, 200, 503], "it lives, and is not ready"
    finally:
        running.terminate()


@pytest.mark.parametrize(
    ("folder", "config"),
    [(BASE, None), (SIDECAR, None), (BASE, ZOOKEEPER / "headrace.toml")],
    ids=["base", "sidecar", "zookeeper"],
)
def test_the_daemon_writes_to_volumes_alone(folder: Path, config: Path | None, tmp_path: Path) -> None:
    settings = settings_of(folder, tmp_path, config)
    writable = [Path(one["mountPath"]) for one in daemon(folder)["volumeMounts"] if not one.get("readOnly")]
    assert Path(final("WORKDIR")) in writable
    written = [settings.daemon.spool, settings.http.token_file]
    if not settings.service:
        written.append(settings.state.path)
    sink = settings.destinations["shop"].sink
    if isinstance(sink, JsonlSinkSettings):
        written.append(Path(sink.path))
    for path in written:
        assert any(path.is_relative_to(one) for one in writable), path


def test_the_sidecar_s_program_reads_the_file_that_the_daemon_writes(tmp_path: Path) -> None:
    sink = settings_of(SIDECAR, tmp_path).destinations["shop"].sink
    assert isinstance(sink, JsonlSinkSettings)
    (reader,) = pod(SIDECAR)["containers"]
    assert str(sink.path) in reader["command"]
    assert daemon(SIDECAR)["restartPolicy"] == "Always", "without it the program would wait for its end"


@EVERY
def test_a_pod_s_end_leaves_time_to_drain(folder: Path) -> None:
    # As the unit does: the drain, and the closing after it.
    assert pod(folder)["terminationGracePeriodSeconds"] >= DaemonSettings().drain_timeout + 3 + 5


def test_two_daemons_share_what_one_has_on_a_volume(tmp_path: Path) -> None:
    (generated,) = kustomization(ZOOKEEPER)["configMapGenerator"]
    assert (generated["name"], generated["behavior"]) == ("headrace", "replace")
    patch = document(ZOOKEEPER / "deployment.yaml")["spec"]
    assert patch["replicas"] > 1
    # Every daemon has a name of its own.
    (name,) = patch["template"]["spec"]["containers"][0]["env"]
    assert f"${{{name['name']}}}" in (ZOOKEEPER / "headrace.toml").read_text()
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    settings = settings_of(BASE, tmp_path, ZOOKEEPER / "headrace.toml")
    assert (settings.service, settings.daemon.node) == ("zookeeper", "headrace-5d9c-x2v")
    (volume,) = patch["template"]["spec"]["volumes"]
    assert (volume["name"], volume["persistentVolumeClaim"]) == ("state", None)
    assert document(ZOOKEEPER / "no-volume.yaml")["metadata"] == document(BASE / "volume.yaml")["metadata"]


@pytest.mark.long
@pytest.mark.parametrize("folder", [BASE, SIDECAR, ZOOKEEPER], ids=lambda folder: folder.name)
def test_kustomize_builds_what_kubernetes_would_take(folder: Path) -> None:
    program = shutil.which("kustomize")
    if program is None:
        pytest.skip("this machine has no kustomize: the other tests read the files")
    done = subprocess.run([program, "build", folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    for one in made:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    assert ("PersistentVolumeClaim" in {one["kind"] for one in made}) is (folder == BASE)
    (deployment,) = [one for one in made if one["kind"] == "Deployment"]
    maps = {one["metadata"]["name"] for one in made if one["kind"] == "ConfigMap"}
    used = {one["configMap"]["name"] for one in deployment["spec"]["template"]["spec"]["volumes"] if "configMap" in one}
    assert used == maps


def test_the_image_is_that_of_the_version() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    for folder in WHOLE:
        assert kustomization(folder)["images"] == [{"name": "headrace", "newTag": version[1]}]
    assert f"headrace:{version[1]}" in FILE.read_text()
