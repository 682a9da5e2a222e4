# The job's processes --------------------------------------------------------------------------------------


class Pipes:
    """The pipes between server and worker, each as (read, write)."""

    def __init__(self):
        self.job, self.out, self.err = os.pipe(), os.pipe(), os.pipe()
        self.report, self.status, self.life = os.pipe(), os.pipe(), os.pipe()

    def close_ends_of_job(self):
        """Leaves the server its own ends."""
        ends = (self.job[0], self.out[1], self.err[1], self.report[1], self.status[1], *self.life)
        for descriptor in ends:
            os.close(descriptor)


def close_all_but(keep):
    low = 0
    for descriptor in sorted(keep):
        # An empty range would be one without an end.
        if low < descriptor:
            os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 0x7FFFFFFF if LINUX else 4096)


def fail(status, error):
    layer = error.layer if isinstance(error, Refused) else "harness"
    reason = error.reason if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
    os.write(status, b"F" + json.dumps([layer, reason[:300]]).encode())
    os._exit(125)


def guard_process(pipes, server, late_length, folder):
    """Enters the job's namespaces, starts its process 1 there, and dies with the server."""
    status = pipes.status[1]
    try:
        os.setsid()
        if LINUX:
            prctl("processes", PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(125)
        if not PLAN["processes"]:
            init_process(pipes, late_length, folder)
        unshare("processes", NEW_PROCESSES)
        if PLAN["mounts"]:
            unshare("mounts", NEW_MOUNTS)
        child = os.fork()
        if child == 0:
            init_process(pipes, late_length, folder)
        close_all_but({pipes.life[1]})
        os.waitpid(child, 0)
        os._exit(0)
    except BaseException as error:  # noqa: BLE001
        fail(status, error)


def init_process(pipes, late_length, folder):
    status = pipes.status[1]
    try:
        close_all_but({pipes.job[0], pipes.out[1], pipes.err[1], pipes.report[1], status, pipes.life[0]})
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        uid = PLAN["uid"]
        if PLAN["mounts"]:
            build_root(os.geteuid() if uid is None else uid, os.getegid() if uid is None else uid)
            folder = "/tmp"
        elif uid is not None:
            os.chown(folder, uid, uid)
        drop_rights(uid)
        if LINUX:
            prctl("processes", PR_SET_PDEATHSIG, signal.SIGKILL)
        os.chdir(folder)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        worker = os.fork()
        if worker == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            worker_process(pipes, late_length, folder)
        close_all_but({status, pipes.life[0]})
        ending = await_worker(worker, pipes.life[0])
        os.write(status, b"E" + json.dumps(ending).encode())
        os._exit(0)
    except BaseException as error:  # noqa: BLE001
        fail(status, error)


def await_worker(worker, life):
    """Waits for the worker, reaps what it left, and ends it if all processes together use too much."""
    limit = OPTIONS["memory_mb"] * MIB
    page = os.sysconf("SC_PAGE_SIZE")
    watch = select.poll()
    watch.register(life, select.POLLHUP)
    while True:
        while True:
            pid, how = os.waitpid(-1, os.WNOHANG)
            if pid == worker:
                return {"signal": os.WTERMSIG(how)} if os.WIFSIGNALED(how) else {"exit": os.WEXITSTATUS(how)}
            if pid == 0:
                break
        if hasattr(signal, "sigtimedwait"):
            signal.sigtimedwait({signal.SIGCHLD}, 0.05)
        else:
            time.sleep(0.01)
        if PLAN["processes"] and watch.poll(0):
            os._exit(125)
        if PLAN["mounts"] and PLAN["processes"]:
            used = 0
            for name in os.listdir("/proc"):
                if name.isdigit() and name != "1":
                    try:
                        with open(f"/proc/{name}/statm") as file:
                            used += int(file.read().split()[1]) * page
                    except (OSError, IndexError, ValueError):
                        pass
            if used > limit:
                os.kill(-1, signal.SIGKILL)
                return {"memory": used}


def read_exactly(descriptor, length, read=os.read, least=min):
    parts = []
    while length:
        part = read(descriptor, least(length, 1 << 20))
        if not part:
            raise EOFError("the job ends early")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def set_limits():
    def limit(which, soft, hard=None):
        most = resource.getrlimit(which)[1]
        hard = soft if hard is None else hard
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        try:
            resource.setrlimit(which, (soft, hard))
        except (OSError, ValueError) as error:
            raise Refused("limits", str(error)) from None

    size = 0
    try:
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        size = 256 * MIB
    seconds = int(OPTIONS["timeout"]) + 2
    limit(resource.RLIMIT_CPU, seconds, seconds + 1)
    limit(resource.RLIMIT_FSIZE, OPTIONS["folder_mb"] * MIB)
    limit(resource.RLIMIT_NOFILE, 256)
    limit(resource.RLIMIT_CORE, 0)
    if hasattr(resource, "RLIMIT_MSGQUEUE"):
        limit(resource.RLIMIT_MSGQUEUE, 0)
        limit(resource.RLIMIT_MEMLOCK, 0)
    if PLAN["children"]:
        # Process 1 and, in a namespace of this user's, the server and the guard count too.
        limit(resource.RLIMIT_NPROC, OPTIONS["max_processes"] + (3 if PLAN["user"] else 1))
    if sys.platform != "darwin":
        limit(resource.RLIMIT_AS, OPTIONS["memory_mb"] * MIB + size)


def worker_process(pipes, late_length, folder):
    status = pipes.status[1]
    try:
        job = json.loads(read_exactly(pipes.job[0], EARLY[0]))
        OPTIONS["timeout"] = job["timeout"]
        # In memory, outside of the folder, and gone with the job.
        text = job.pop("stdin", "").encode()
        if hasattr(os, "memfd_create"):
            source = os.memfd_create("stdin", 0)
        else:
            source = os.open("/dev/null" if not text else f"{folder}/.stdin", os.O_RDWR | os.O_CREAT, 0o600)
        while text:
            text = text[os.write(source, text):]
        os.lseek(source, 0, os.SEEK_SET)
        os.dup2(source, 0)
        os.dup2(pipes.out[1], 1)
        os.dup2(pipes.err[1], 2)
        close_all_but({0, 1, 2, pipes.job[0], pipes.report[1], status})
        for name, text in (job.pop("files", None) or {}).items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        os.environ.clear()
        os.environ.update({
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        })
        sys.path.insert(0, folder)
        if job["mode"] == "probe":
            probe_children(status)
        set_limits()
        if PLAN["landlock"]:
            restrict_files(PLAN["landlock"], folder)
        if LINUX:
            prctl("processes", PR_SET_PDEATHSIG, signal.SIGKILL)
        if PLAN["seccomp"]:
            filter_calls()
        if job["mode"] == "probe":
            probe(status, job)
        os.write(status, b"R")
        os.close(status)
    except BaseException as error:  # noqa: BLE001
        fail(status, error)
    execute(job, pipes.job[0], late_length, pipes.report[1])


