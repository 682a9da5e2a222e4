"""Python programs that begin at once, because they are forked from a process that has imported the slow
packages (PyTorch, transformers, peft)."""

import contextlib
import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest.mock
from multiprocessing import forkserver, reduction

HEAVY = [
    "tamis.learner.server", "tamis.learner.ranks", "tamis.learner.transfer", "tamis.reward.server",
    "transformers.models.qwen2.modeling_qwen2", "peft",
]  # fmt: skip

# Beginning a process checks how the others ended, so two threads must not do it at once.
_LOCK = threading.Lock()
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(HEAVY)


class Program:
    """What `subprocess.Popen` is to a program of Python: `argv` is what would follow `python`, `-m MODULE ...` or `FILE ...`.

    `output` is an open file, or the writing end of a pipe, and takes the place of these `standard` handles.
    """

    def __init__(self, argv, env, output, standard=(1, 2), cwd=None, start_new_session=False):
        _begin()
        passed = _Passed(output.fileno())
        arguments = (list(argv), dict(env), passed, standard, cwd, start_new_session)
        self._process = _context.Process(target=_run, args=arguments, daemon=True)
        with _LOCK:
            self._process.start()
        self.pid, self.sentinel = self._process.pid, self._process.sentinel

    @property
    def returncode(self):
        with _LOCK:
            return self._process.exitcode

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        multiprocessing.connection.wait([self.sentinel], timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


@functools.cache
def _begin():
    """Begins the process that the others are forked from: one thread, and the package on its path."""
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    with unittest.mock.patch.dict(os.environ, paths):
        forkserver.ensure_running()


# Requests a program, passes on signals to end, and ends as it does.
_STAND_IN = """#!{python} -IS
import json, os, signal, socket, sys
if sys.argv[1:2] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    request = json.dumps(dict(argv=sys.argv[1:], env=dict(os.environ), cwd=os.getcwd())).encode()
    socket.send_fds(asked, [len(request).to_bytes(4, "big")], [2])
    asked.sendall(request)
    signal.signal(signal.SIGTERM, lambda *_: asked.send(b"end"))
    status = int(asked.recv(16) or sys.exit("the process of the tests has ended"))
if status < 0:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


@functools.cache
def interpreter():
    """The path of a program that stands in for this interpreter, for programs that start `python -m MODULE`.

    What it runs is a `Program` of this process, with its output in the stand-in's errors. SIGTERM
    reaches it; whatever else ends the stand-in kills it.
    """
    _begin()
    folder = tempfile.TemporaryDirectory(prefix="python-")
    address = f"{folder.name}/socket"
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    path = pathlib.Path(folder.name, "python")
    path.write_text(_STAND_IN.format(python=sys.executable, address=address))
    path.chmod(0o755)

    def serve(folder):
        while True:
            threading.Thread(target=_run_for, args=(server.accept()[0],), daemon=True).start()

    # The folder is there as long as the thread is.
    threading.Thread(target=serve, args=(folder,), daemon=True).start()
    return str(path)


def _run_for(stand_in):
    with stand_in:
        length, handles, *_ = socket.recv_fds(stand_in, 4, 1)
        if not handles:
            return  # It was killed before it asked.
        with open(handles[0], "wb") as output:
            request = stand_in.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
            if len(request) < int.from_bytes(length, "big"):
                return
            request = json.loads(request)
            program = Program(request["argv"], request["env"], output, cwd=request["cwd"])
        with contextlib.suppress(ConnectionError):
            while program.sentinel not in multiprocessing.connection.wait([stand_in, program.sentinel]):
                if not stand_in.recv(16):
                    break
                program.send_signal(signal.SIGTERM)
            else:
                stand_in.send(str(program.wait()).encode())
        program.kill()
        program.wait()


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
