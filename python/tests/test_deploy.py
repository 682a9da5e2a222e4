"""The files of deploy/: manifests, scripts, images, and every `tamis` command in them, as far as that goes without a
cluster.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

# First: it says so, and leaves the tests out, where PyTorch is missing.
from support import ROOT

import yaml
from test_run import PROGRAM, TINY

DEPLOY = ROOT / "deploy"
# Keys of KubeRay's `ray.io/v1` that stand in our files, by the place at which they may (its API reference).
JOB = {
    "submissionMode", "entrypoint", "entrypointNumCpus", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished",
    "backoffLimit", "rayClusterSpec",
}  # fmt: skip
CLUSTER = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
HEAD = {"rayStartParams", "template"}
WORKER = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
CONTAINER = {"name", "image", "ports", "resources", "volumeMounts"}
# What shell variables of the scripts stand for.
VALUES = {"head": "10.0.0.1", "port": "6379", "runs": "runs", "SLURM_JOB_NAME": "tamis", "servers": "[http://h:8000]", "key": "key", "config": "run.yaml"}


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def scripts():
    """Every shell script, by the file it stands in."""
    found = {path.name: path.read_text() for path in (DEPLOY / "slurm").iterdir()}
    (task,) = documents("skypilot.yaml")
    found |= {f"skypilot {part}": task[part] for part in ("setup", "run")}
    found["rayjob"] = documents("rayjob.yaml")[0]["spec"]["entrypoint"]
    return found


def commands():
    """Every `tamis train` with its arguments, by the file it stands in."""
    texts = scripts() | {name: (DEPLOY / name).read_text() for name in ("README.md", "ray-cluster.yaml")}
    for name, text in texts.items():
        # Comments go on with a `#` of their own.
        text = re.sub(r"\\\n#?\s*", " ", text)
        for found in re.findall(r"tamis train ([^;\n|`]*)", text):
            filled = re.sub(r"\$\{?(\w+)\}?", lambda variable: VALUES[variable[1]], found)
            words = shlex.split(filled.replace("'", ""))
            if words and words[0] != "...":
                yield name, words


class Deploy(unittest.TestCase):
    def check_cluster(self, spec):
        self.assertEqual(set(spec), CLUSTER)
        self.assertLessEqual(set(spec["headGroupSpec"]), HEAD)
        self.check_pod(spec["headGroupSpec"]["template"], has_gpus=False)
        self.assertEqual(spec["headGroupSpec"]["rayStartParams"]["num-gpus"], "0")
        for group in spec["workerGroupSpecs"]:
            self.assertEqual(set(group), WORKER)
            self.assertEqual({group["minReplicas"], group["maxReplicas"]}, {group["replicas"]})
            self.check_pod(group["template"], has_gpus=True)
        listed = (ROOT / "python/requirements-ray.txt").read_text().splitlines()
        self.assertIn(f"ray=={spec['rayVersion']}", listed)

    def check_pod(self, template, has_gpus):
        self.assertEqual(set(template), {"spec"})
        self.assertEqual(set(template["spec"]), {"containers", "volumes"})
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        (container,) = template["spec"]["containers"]
        self.assertLessEqual(set(container), CONTAINER)
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        self.assertEqual(set(mounts), volumes)
        self.assertEqual(mounts["shm"], "/dev/shm")
        # Kubernetes wants as many GPUs asked for as are the limit.
        limits, requests = container["resources"]["limits"], container["resources"]["requests"]
        self.assertEqual(limits, requests)
        self.assertEqual("nvidia.com/gpu" in limits, has_gpus)

    def test_manifests_are_what_their_kinds_ask_for(self):
        (job,) = documents("rayjob.yaml")
        self.assertEqual((job["apiVersion"], job["kind"]), ("ray.io/v1", "RayJob"))
        self.assertEqual(set(job["spec"]), JOB)
        self.assertEqual(job["spec"]["submissionMode"], "HTTPMode")
        self.check_cluster(job["spec"]["rayClusterSpec"])
        (cluster,) = documents("ray-cluster.yaml")
        self.assertEqual((cluster["apiVersion"], cluster["kind"]), ("ray.io/v1", "RayCluster"))
        self.check_cluster(cluster["spec"])
        self.assertEqual(cluster["spec"], job["spec"]["rayClusterSpec"], "the same cluster in both")
        (task,) = documents("skypilot.yaml")
        self.assertEqual(set(task), {"name", "resources", "num_nodes", "workdir", "file_mounts", "setup", "run"})

    def test_scripts_are_read_by_the_shell(self):
        for name, text in scripts().items():
            with self.subTest(name):
                read = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
                self.assertEqual(read.returncode, 0, read.stderr)
        if shutil.which("shellcheck") is None:
            self.skipTest("there is no shellcheck: apt-get install shellcheck")
        for path in sorted((DEPLOY / "slurm").iterdir()):
            with self.subTest(path.name):
                found = subprocess.run(["shellcheck", str(path)], text=True, capture_output=True)
                self.assertEqual(found.returncode, 0, found.stdout)

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
