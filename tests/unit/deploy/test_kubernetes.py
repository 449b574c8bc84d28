"""What kubectl renders of deploy/kubernetes."""

import io
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fakes.documentation import ROOT
from fakes.kubernetes.pod_security import violations
from fakes.kubernetes.requirements import skip_or_fail
from fakes.kubernetes.schemas import VERSIONS, check
from ruamel.yaml import YAML

import proctor
from proctor.manager import settings
from proctor.manager.api.guard import OPEN_PATHS
from proctor.training_services.kubernetes.checks import RIGHTS
from proctor.training_services.kubernetes.manifests import ExperimentManifests, Names
from proctor.training_services.kubernetes.settings import KubernetesSettings

FOLDER = ROOT / "deploy" / "kubernetes"
SECRET = "proctor-tokens"
Rendered = dict[str, dict[str, Any]]


@cache
def find_kubectl() -> str:
    """One that has a recent kustomize. Skips the test, or fails it, where there is none."""
    found = shutil.which("kubectl")
    words = [str(found), "version", "--client", "--output=json"]
    version = subprocess.run(words, capture_output=True, text=True, check=True).stdout if found else "{}"
    client = json.loads(version).get("clientVersion", {"major": "0", "minor": "0"})
    if (int(client["major"]), int(client["minor"].rstrip("+"))) < (1, 27):
        skip_or_fail(f"kubectl 1.27 or newer is needed, found {client.get('gitVersion', 'none')}")
    return str(found)


@cache
def render(overlay: str) -> Rendered:
    """The objects by kind; there is one of each."""
    return render_folder(FOLDER / overlay)


def render_folder(folder: Path) -> Rendered:
    done = subprocess.run([find_kubectl(), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = list(YAML(typ="safe").load_all(io.StringIO(done.stdout)))
    objects = {each["kind"]: each for each in found}
    assert len(objects) == len(found)
    return objects


@pytest.fixture
def base() -> Rendered:
    return render("base")


@pytest.fixture
def pod(base: Rendered) -> dict[str, Any]:
    spec = base["Deployment"]["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


@pytest.fixture
def container(base: Rendered) -> dict[str, Any]:
    return container_of(base)


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    """Its environment, in a namespace `lab`; as in Kubernetes, a name is known only after its own line."""
    known: dict[str, str] = {}
    for row in container["env"]:
        text = row.get("value", "lab")  # the one that has a reference has that of the namespace
        for name, value in known.items():
            text = text.replace(f"$({name})", value)
        assert "$(" not in text, f"{row['name']} names a variable that comes later"
        known[row["name"]] = text
    return known


def container_of(objects: Rendered) -> dict[str, Any]:
    """The only one of the manager's pod."""
    (found,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def web_of(container: dict[str, Any]) -> settings.WebSettings:
    """What its environment says of the page."""
    return settings.read_environment(environment_of(container))[0]


def test_the_base_is_what_a_manager_needs_and_holds_no_secret(base: Rendered) -> None:
    kinds = {"ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim", "Service", "Deployment"}
    assert set(base) == kinds | {"NetworkPolicy", "PodDisruptionBudget"}


def test_the_pod_is_allowed_where_pod_security_enforces_the_level_restricted(pod: dict[str, Any]) -> None:
    assert violations(pod, "restricted") == ""
    label = "kubectl label namespace proctor pod-security.kubernetes.io/enforce=restricted"
    assert label in (ROOT / "docs/deployment.md").read_text(encoding="utf-8")


def test_the_one_replica_does_not_block_a_drain(base: Rendered) -> None:
    budget = base["PodDisruptionBudget"]["spec"]
    assert budget["selector"] == base["Deployment"]["spec"]["selector"]
    assert (budget["maxUnavailable"], base["Deployment"]["spec"]["replicas"]) == (1, 1)


def test_trials_reach_the_keepers_port_and_everyone_the_other_one(base: Rendered) -> None:
    policy = base["NetworkPolicy"]["spec"]
    assert policy["podSelector"] == base["Deployment"]["spec"]["selector"]
    assert policy["policyTypes"] == ["Ingress"]
    people, keepers = policy["ingress"]
    assert (people, keepers["ports"]) == ({"ports": [{"port": "http"}]}, [{"port": "keepers"}])
    ((selector,),) = ([each["podSelector"] for each in keepers["from"]],)
    (wanted,) = selector["matchExpressions"]
    manifests = ExperimentManifests(Names("manager"), "E", KubernetesSettings(image="i"), "1")
    labels = manifests.anchor("endpoint")["metadata"]["labels"]  # which all of its objects have
    assert (selector.keys(), wanted["operator"]) == ({"matchExpressions"}, "In")
    assert labels[wanted["key"]] in wanted["values"]


def test_there_is_one_manager_at_a_time_on_one_claim(
    base: Rendered, pod: dict[str, Any], container: dict[str, Any]
) -> None:
    spec = base["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    claim = base["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    volume = next(each["name"] for each in pod["volumes"] if "persistentVolumeClaim" in each)
    named = next(each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if each["name"] == volume)
    assert named == claim["metadata"]["name"]
    mounted = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == volume)
    assert f"PROCTOR_HOME={mounted} " in (ROOT / "deploy/docker/manager.Dockerfile").read_text(encoding="utf-8")


def test_the_pod_may_do_little_and_writes_to_its_volumes_alone(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    user = f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}\n"
    assert user in (ROOT / "deploy/docker/manager.Dockerfile").read_text(encoding="utf-8")
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert writable == {"/var/lib/proctor", "/tmp"}


def test_the_tokens_come_from_a_secret_of_the_users(pod: dict[str, Any], container: dict[str, Any]) -> None:
    secret = next(each for each in pod["volumes"] if "secret" in each)
    assert secret["secret"]["secretName"] == SECRET
    folder = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == secret["name"])
    web = web_of(container)
    assert (web.token_file, web.readonly_token_file) == (f"{folder}/token", f"{folder}/readonly-token")


def test_people_and_keepers_reach_the_manager_by_the_names_of_its_service(
    base: Rendered, container: dict[str, Any]
) -> None:
    service, environment = base["Service"], environment_of(container)
    name = service["metadata"]["name"]
    assert service["spec"]["selector"] == base["Deployment"]["spec"]["selector"]["matchLabels"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert {each["name"]: each["port"] for each in service["spec"]["ports"]} == ports
    assert all(each["targetPort"] == each["name"] for each in service["spec"]["ports"])
    allowed = set(web_of(container).allowed_hosts)
    assert allowed == {name, f"{name}.lab", f"{name}.lab.svc", f"{name}.lab.svc.cluster.local"}
    keepers = settings.read_keeper_listen(environment=environment)
    assert keepers == settings.ListenAddress("0.0.0.0", ports["keepers"], f"https://{name}.lab.svc:{ports['keepers']}")


@pytest.mark.parametrize("overlay", ["base", "overlays/example"])
def test_the_service_does_not_set_a_variable_of_ours_in_every_pod_of_the_namespace(overlay: str) -> None:
    """Kubernetes sets NAME_PORT, NAME_SERVICE_HOST and so on; a Service `proctor` would set PROCTOR_PORT."""
    ours = {value for name, value in vars(settings).items() if name.startswith("ENV_")}
    prefix = render(overlay)["Service"]["metadata"]["name"].upper().replace("-", "_")
    assert not [name for name in ours if name.startswith(f"{prefix}_")]
    assert render(overlay)["Deployment"]["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_the_pod_is_asked_how_it_is_without_a_token(container: dict[str, Any]) -> None:
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert (asked["path"] in OPEN_PATHS, asked["port"]) == (True, "http")


def test_the_role_allows_what_the_platform_does_and_nothing_else(base: Rendered, pod: dict[str, Any]) -> None:
    allowed = {
        (group, resource, verb)
        for rule in base["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {(right.group, right.resource, verb) for right in RIGHTS for verb in right.verbs}
    binding, account = base["RoleBinding"], base["ServiceAccount"]["metadata"]["name"]
    assert binding["roleRef"]["name"] == base["Role"]["metadata"]["name"]
    assert [each["name"] for each in binding["subjects"]] == [pod["serviceAccountName"]] == [account]


def test_the_image_is_that_of_this_release(container: dict[str, Any]) -> None:
    assert container["image"] == f"proctor-manager:{proctor.__version__}"


def test_the_example_serves_under_a_path_of_a_host_that_the_manager_answers_to() -> None:
    objects = render("overlays/example")
    web = web_of(container_of(objects))
    (rule,) = objects["Ingress"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert rule["host"] in web.allowed_hosts
    assert objects["Ingress"]["spec"]["tls"][0]["hosts"] == [rule["host"]]
    assert (path["path"], path["pathType"]) == (web.url_prefix, "Prefix")
    service = objects["Service"]
    assert path["backend"]["service"]["name"] == service["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] in {each["name"] for each in service["spec"]["ports"]}
    assert all(each["metadata"]["namespace"] == "proctor" for each in objects.values())


def test_a_copy_of_the_example_in_another_namespace_answers_to_the_names_of_its_service(tmp_path: Path) -> None:
    text = (FOLDER / "overlays/example/kustomization.yaml").read_text(encoding="utf-8")
    text = text.replace("namespace: proctor\n", "namespace: lab\n")
    text = text.replace("../../", f"{os.path.relpath(FOLDER, tmp_path.resolve())}/")
    (tmp_path / "kustomization.yaml").write_text(text, encoding="utf-8")
    objects = render_folder(tmp_path)
    assert {each["metadata"]["namespace"] for each in objects.values()} == {"lab"}
    in_cluster = web_of(container_of(render("base"))).allowed_hosts
    assert set(web_of(container_of(objects)).allowed_hosts) == {*in_cluster, "proctor.example.org"}


def test_prometheus_gets_the_read_only_token_and_finds_the_service() -> None:
    objects = render("overlays/example")
    spec = objects["ServiceMonitor"]["spec"]
    assert spec["selector"]["matchLabels"].items() <= objects["Service"]["metadata"]["labels"].items()
    (endpoint,) = spec["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": SECRET, "key": "readonly-token"}
    assert endpoint["port"] in {each["name"] for each in objects["Service"]["spec"]["ports"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_its_objects_are_valid_in_each_version(version: str) -> None:
    of_the_cluster = [each for kind, each in render("overlays/example").items() if kind != "ServiceMonitor"]
    problems = [(each["kind"], check(each, version)) for each in of_the_cluster]  # that one is the operator's own
    assert [problem for problem in problems if problem[-1]] == []
