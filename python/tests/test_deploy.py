"""The files of deploy/: manifests, scripts, images, and every `tamis` command in them, as far as that goes without a
cluster.
"""

import copy
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

# First: without PyTorch it reports that and skips the tests.
from support import ROOT

import yaml
from test_run import PROGRAM, TINY

DEPLOY = ROOT / "deploy"
# Fields of KubeRay's `ray.io/v1` and of the parts of Kubernetes in it, from their API references: all at the
# levels at which our manifests have any. `{}` means a part that they lack. Older versions of KubeRay ask
# for `rayStartParams`.
SCHEMA = json.loads((ROOT / "python/tests/ray_io_v1.json").read_text())
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
# Values of the scripts' shell variables.
VALUES = {"head": "10.0.0.1", "port": "6379", "runs": "runs", "SLURM_JOB_NAME": "tamis", "servers": "[http://h:8000]", "key": "key", "config": "run.yaml"}


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def has_type(value, names):
    """Whether a value is of one of these types of JSON."""
    names = [names] if isinstance(names, str) else names
    return any(isinstance(value, TYPES[name]) and (name == "boolean") == isinstance(value, bool) for name in names)


def faults(value, schema, place):
    """The fault of a value, by the part of JSON Schema that `SCHEMA` uses; other words of it are refused."""
    unknown = set(schema) - {"$ref", "type", "enum", "minimum", "required", "properties", "additionalProperties", "items"}
    assert not unknown, f"{place}: {unknown}"
    if "$ref" in schema:
        return faults(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], place)
    if "type" in schema and not has_type(value, schema["type"]):
        return [f"{place}: {value!r} is no {schema['type']}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{place}: {value!r} is none of {schema['enum']}")
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{place}: {value} is below {schema['minimum']}")
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        found += [f"{place}: there is no {name}" for name in schema.get("required", []) if name not in value]
        for name, part in value.items():
            if name not in known and others is False:
                found.append(f"{place}: nobody knows {name}")
            else:
                found += faults(part, known.get(name, others), f"{place}.{name}")
    if isinstance(value, list):
        for number, part in enumerate(value):
            found += faults(part, schema.get("items", {}), f"{place}[{number}]")
    return found


def manifest_faults(manifest):
    """The fault of a manifest of `ray.io/v1`."""
    return faults(manifest, SCHEMA["$defs"][manifest["kind"]], manifest["kind"])


def scripts():
    """Every shell script, by the file that contains it."""
    found = {path.name: path.read_text() for path in (DEPLOY / "slurm").iterdir()}
    (task,) = documents("skypilot.yaml")
    found |= {f"skypilot {part}": task[part] for part in ("setup", "run")}
    found["rayjob"] = documents("rayjob.yaml")[0]["spec"]["entrypoint"]
    return found


def commands():
    """Every `tamis train` with its arguments, by the file that contains it."""
    texts = scripts() | {name: (DEPLOY / name).read_text() for name in ("README.md", "ray-cluster.yaml")}
    for name, text in texts.items():
        # Comments continue with a `#` of their own.
        text = re.sub(r"\\\n#?\s*", " ", text)
        for found in re.findall(r"tamis train ([^;\n|`]*)", text):
            filled = re.sub(r"\$\{?(\w+)\}?", lambda variable: VALUES[variable[1]], found)
            words = shlex.split(filled.replace("'", ""))
            if words and words[0] != "...":
                yield name, words


class Deploy(unittest.TestCase):
    def check_cluster(self, spec):
        self.check_pod(spec["headGroupSpec"]["template"], has_gpus=False)
        self.assertEqual(spec["headGroupSpec"]["rayStartParams"]["num-gpus"], "0")
        for group in spec["workerGroupSpecs"]:
            self.assertEqual({group["minReplicas"], group["maxReplicas"]}, {group["replicas"]})
            self.check_pod(group["template"], has_gpus=True)
        listed = (ROOT / "python/requirements-ray.txt").read_text().splitlines()
        self.assertIn(f"ray=={spec['rayVersion']}", listed)

    def check_pod(self, template, has_gpus):
        self.assertEqual(set(template), {"spec"})
        self.assertEqual(set(template["spec"]), {"containers", "volumes"})
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        (container,) = template["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        self.assertEqual(set(mounts), volumes)
        self.assertEqual(mounts["shm"], "/dev/shm")
        # Kubernetes requires equal requests and limits for GPUs.
        limits, requests = container["resources"]["limits"], container["resources"]["requests"]
        self.assertEqual(limits, requests)
        self.assertEqual("nvidia.com/gpu" in limits, has_gpus)

    def test_manifests_are_what_their_kinds_ask_for(self):
        (job,) = documents("rayjob.yaml")
        self.assertEqual((job["kind"], manifest_faults(job)), ("RayJob", []))
        self.assertEqual(job["spec"]["submissionMode"], "HTTPMode")
        self.check_cluster(job["spec"]["rayClusterSpec"])
        (cluster,) = documents("ray-cluster.yaml")
        self.assertEqual((cluster["kind"], manifest_faults(cluster)), ("RayCluster", []))
        self.check_cluster(cluster["spec"])
        self.assertEqual(cluster["spec"], job["spec"]["rayClusterSpec"], "the same cluster in both")
        (task,) = documents("skypilot.yaml")
        self.assertEqual(set(task), {"name", "resources", "num_nodes", "workdir", "volumes", "setup", "run"})
        # All nodes see the run directory, and end with the first.
        self.assertEqual(set(task["volumes"]), {"/shared"})
        self.assertIn("trap 'ray stop' EXIT", task["run"])

    def test_what_the_schema_does_not_know_is_refused(self):
        (job,) = documents("rayjob.yaml")

        def said(change):
            changed = copy.deepcopy(job)
            change(changed["spec"], changed["spec"]["rayClusterSpec"]["workerGroupSpecs"][0])
            return manifest_faults(changed)

        worker, pod = "RayJob.spec.rayClusterSpec.workerGroupSpecs[0]", "template.spec"
        for change, expected in (
            (lambda spec, group: spec.update(ttlSecondsAfterFinish=1), "RayJob.spec: nobody knows ttlSecondsAfterFinish"),
            (lambda spec, group: spec.update(submissionMode="HttpMode"), "RayJob.spec.submissionMode: 'HttpMode' is none of"),
            (lambda spec, group: spec.update(backoffLimit="3"), "RayJob.spec.backoffLimit: '3' is no integer"),
            (lambda spec, group: spec.update(suspend=1), "RayJob.spec.suspend: 1 is no boolean"),
            (lambda spec, group: group.update(replicas=True), f"{worker}.replicas: True is no integer"),
            (lambda spec, group: group.update(numOfHosts=0), f"{worker}.numOfHosts: 0 is below 1"),
            (lambda spec, group: group.pop("groupName"), f"{worker}: there is no groupName"),
            # A text that YAML reads as a number.
            (lambda spec, group: group["rayStartParams"].update({"num-gpus": 8}), f"{worker}.rayStartParams.num-gpus: 8 is no"),
            (
                lambda spec, group: group["template"]["spec"]["containers"][0].update(volumeMount=[]),
                f"{worker}.{pod}.containers[0]: nobody knows volumeMount",
            ),
            (
                lambda spec, group: group["template"]["spec"]["volumes"][1]["emptyDir"].update(size="1Gi"),
                f"{worker}.{pod}.volumes[1].emptyDir: nobody knows size",
            ),
        ):
            with self.subTest(expected):
                (found,) = said(change)
                self.assertTrue(found.startswith(expected), found)

    def test_scripts_are_read_by_the_shell(self):
        for name, text in scripts().items():
            with self.subTest(name):
                read = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
                self.assertEqual(read.returncode, 0, read.stderr)
        if shutil.which("shellcheck") is None:
            self.skipTest("there is no shellcheck: apt-get install shellcheck")
        for name, text in scripts().items():
            with self.subTest(name):
                found = subprocess.run(["shellcheck", "--shell=bash", "--exclude=SC1090,SC1091", "-"], input=text, text=True, capture_output=True)
                self.assertEqual(found.returncode, 0, found.stdout)

    def test_a_job_of_slurm_waits_for_all_its_nodes(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        # A head that answers at once, and a node that comes during the wait.
        (folder / "ray.py").write_text(
            "import os, pathlib\n"
            "def init(address, **values): assert address == '10.0.0.1:6379'\n"
            "def nodes():\n"
            "    folder = pathlib.Path(os.environ['PYTHONPATH'])\n"
            "    return [{'Alive': True}, {'Alive': False}, {'Alive': (folder / 'slept').exists()}]\n"
        )
        for name, text in (("ray", "exit 0"), ("sleep", f"echo $1 >> {folder}/slept")):
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        (wait,) = re.findall(r"^# Until all nodes are there.*?^done$", scripts()["ray.sbatch"], re.MULTILINE | re.DOTALL)
        script = f"set -euo pipefail\nhead=10.0.0.1 port=6379 nodes=(a b)\n{wait}"
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
        subprocess.run(["bash", "-c", script], env=environment, check=True)
        self.assertEqual((folder / "slept").read_text(), "2\n")

    def test_images_copy_what_there_is(self):
        for path in sorted(DEPLOY.glob("Dockerfile.*")):
            text = path.read_text()
            for source in re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE):
                self.assertTrue((ROOT / source).exists(), f"{path.name}: {source}")
            for script in re.findall(r"^RUN (scripts/\S+)", text, re.MULTILINE):
                self.assertTrue(os.access(ROOT / script, os.X_OK), f"{path.name}: {script}")
            self.assertIn(f"-f deploy/{path.name}", text)

    @unittest.skipUnless(PROGRAM.exists(), f"there is no program {PROGRAM}: cargo build -p tamis-cli")
    def test_the_program_takes_every_command(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "config.yaml").write_text(TINY)
        found = list(commands())
        self.assertGreaterEqual(len(found), 9, found)
        for name, words in found:
            with self.subTest(name, words=words):
                given = [word for word in words if "=" in word]
                if words[0] != "--resume":
                    self.assertTrue(words[0].endswith(".yaml"), words)
                checked = subprocess.run(
                    [str(PROGRAM), "config", "check", "config.yaml", *given], cwd=folder, text=True, capture_output=True
                )
                self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_the_table_names_every_file(self):
        table = (DEPLOY / "README.md").read_text()
        files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.name != "README.md"]
        for path in files:
            self.assertIn(f"({path.relative_to(DEPLOY)})", table)


if __name__ == "__main__":
    unittest.main()
