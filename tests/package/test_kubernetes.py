# SPDX-License-Identifier: Apache-2.0
"""The manifests: parsed, joined to each other, and compared with what the program and the image say."""
import re

import pytest
import ternlib

yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")
FOLDER = ternlib.SOURCE / "packaging" / "kubernetes"


class Strict(yaml.SafeLoader):
    """A key that is there twice is a mistake."""


def mapping(loader, node):
    keys = [loader.construct_object(k) for k, _ in node.value]
    assert len(keys) == len(set(keys)), f"twice: {keys}"
    return {loader.construct_object(k): loader.construct_object(v, deep=True) for k, v in node.value}


Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)


def load(name):
    docs = list(yaml.load_all((FOLDER / name).read_text(), Strict))
    assert len(docs) == 1
    return docs[0]


KINDS = {d["kind"]: d for d in map(load, ("pvc.yaml", "service.yaml", "deployment.yaml"))}
POD = KINDS["Deployment"]["spec"]["template"]["spec"]
TERN = POD["containers"][0]


def test_the_kustomization_names_every_manifest():
    k = load("kustomization.yaml")
    assert set(k["resources"]) == {p.name for p in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}


def test_each_kind_has_its_version_and_a_valid_name():
    assert {k: d["apiVersion"] for k, d in KINDS.items()} == {
        "PersistentVolumeClaim": "v1", "Service": "v1", "Deployment": "apps/v1"}
    for d in KINDS.values():
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", d["metadata"]["name"])


def test_service_deployment_and_claim_find_each_other():
    labels = KINDS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (KINDS["Service"]["spec"]["selector"], KINDS["Deployment"]["spec"]["selector"]["matchLabels"]):
        assert selector and selector.items() <= labels.items()
    assert KINDS["Service"]["spec"]["ports"][0]["targetPort"] in {p["name"] for p in TERN["ports"]}
    volumes = {v["name"]: v for v in POD["volumes"]}
    mount, = TERN["volumeMounts"]
    assert volumes[mount["name"]]["persistentVolumeClaim"]["claimName"] == \
        KINDS["PersistentVolumeClaim"]["metadata"]["name"]
    assert mount["mountPath"] == "/model" and mount["readOnly"] is True
    assert KINDS["Deployment"]["spec"]["strategy"]["type"] == "Recreate", "two pods can't have the volume"


def test_the_arguments_are_ones_that_the_program_takes():
    args = TERN["args"]
    assert args[:2] == ["serve", mount_path()]
    r = ternlib.run("serve", ternlib.MODEL, *args[2:], "--num-gpu-blocks-override", 1)  # the last one ends it
    assert r.returncode == 2 and b"--num-gpu-blocks-override" in r.stderr, r.stderr
    assert f"--port={TERN['ports'][0]['containerPort']}" in args


def mount_path():
    return TERN["volumeMounts"][0]["mountPath"]


def test_the_probes_ask_health_and_give_loading_its_time():
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        p = TERN[name]
        assert p["httpGet"] == {"path": "/health", "port": TERN["ports"][0]["name"]}
        assert 0 < p["timeoutSeconds"] <= p["periodSeconds"] and p["failureThreshold"] >= 2
    start, live = TERN["startupProbe"], TERN["livenessProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 600
    assert live["failureThreshold"] * live["periodSeconds"] >= 60
    timeout = next(int(a.split("=")[1]) for a in TERN["args"] if a.startswith("--shutdown-timeout="))
    assert POD["terminationGracePeriodSeconds"] > timeout


def test_it_runs_as_the_user_of_the_image_without_rights():
    s, c = POD["securityContext"], TERN["securityContext"]
    user = re.search(r"^USER (\d+):(\d+)$", (FOLDER.parent / "Containerfile").read_text(), re.M)
    assert s["runAsNonRoot"] is True and (s["runAsUser"], s["runAsGroup"]) == (int(user[1]), int(user[2]))
    assert s["seccompProfile"] == {"type": "RuntimeDefault"}
    assert c == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert POD["automountServiceAccountToken"] is False


def test_requests_are_within_limits_and_the_image_is_of_this_version():
    def number(text):
        m = re.fullmatch(r"(\d+)(Mi|Gi)?", str(text))
        return int(m[1]) * {None: 1, "Mi": 1 << 20, "Gi": 1 << 30}[m[2]]
    r = TERN["resources"]
    for what in ("cpu", "memory"):
        assert 0 < number(r["requests"][what]) <= number(r["limits"][what])
    assert r["requests"]["memory"] == r["limits"]["memory"], "the plan counts on the limit"
    version = ternlib.run("--version").stdout.decode().split()[1]
    assert TERN["image"].endswith(f":{version}")
