"""Python programs that begin at once: forked from a process that has imported what takes seconds (PyTorch, transformers)."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import unittest.mock
from multiprocessing import forkserver, reduction

HEAVY = ["tamis.learner.server", "tamis.learner.ranks", "tamis.learner.transfer", "transformers.models.qwen2.modeling_qwen2"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(HEAVY)


class Program:
    """What `subprocess.Popen` is to a program of Python: `argv` is what would follow `python`, `-m MODULE ...` or `FILE ...`.

    `output` is an open file, or the writing end of a pipe, and takes the place of these `standard` handles.
    """

    def __init__(self, argv, env, output, standard=(1, 2), cwd=None, start_new_session=False):
        # The process that the others are forked from begins with the first: one thread, and the package on its path.
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        with unittest.mock.patch.dict(os.environ, paths):
            forkserver.ensure_running()
        passed = _Passed(output.fileno())
        arguments = (list(argv), dict(env), passed, standard, cwd, start_new_session)
        self._process = _context.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self._process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class _Passed:
    """An open file, as it travels to a process that is being started."""

    def __init__(self, handle):
        self.handle = handle

    def __reduce__(self):
        return _detach, (reduction.DupFd(self.handle),)


def _detach(passed):
    return passed.detach()


def _run(argv, env, output, standard, cwd, start_new_session):
    if start_new_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd or os.getcwd())
    for handle in standard:
        os.dup2(output, handle)
    os.close(output)
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))
        runpy.run_path(argv[0], run_name="__main__")
