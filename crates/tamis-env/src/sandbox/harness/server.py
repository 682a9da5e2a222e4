# The server -----------------------------------------------------------------------------------------------

EARLY = [0]
FRAMES = [1]


def write_frame(letter, text):
    report_all_bytes(FRAMES[0], letter + struct.pack("<I", len(text)) + bytes(text))


def report_all_bytes(descriptor, data):
    data = memoryview(data)
    while data:
        data = data[os.write(descriptor, data):]


class Job:
    """One job under watch."""

    def __init__(self, early, late, timeout, folder):
        self.pipes = Pipes()
        self.left = early + late
        self.timeout = timeout
        EARLY[0] = early
        server = os.getpid()
        self.guard = os.fork()
        if self.guard == 0:
            guard_process(self.pipes, server, late, folder)
        pipes = self.pipes
        pipes.close_ends_of_job()
        os.set_blocking(pipes.job[1], False)
        self.output = bytearray(CHUNK)
        self.ending = None
        self.failure = None
        self.is_ready = False

    def watch(self, buffer, limit, report_limit):
        pipes = self.pipes
        readers = {pipes.out[0]: b"o", pipes.err[0]: b"e", pipes.report[0]: b"r"}
        limits = {b"o": limit, b"e": limit, b"r": report_limit}
        kept, cut = {b"o": 0, b"e": 0, b"r": 0}, {b"o": 0, b"e": 0, b"r": 0}
        poll = select.poll()
        for descriptor in (*readers, pipes.status[0]):
            poll.register(descriptor, select.POLLIN)
        start, start_pending, end_pending = time.monotonic(), 0, 0
        deadline = start + SETUP_SECONDS
        can_feed, message = True, b""
        is_watched = {0: None, pipes.job[1]: None}

        def want(descriptor, events):
            if is_watched[descriptor] != events:
                if events is None:
                    poll.unregister(descriptor)
                else:
                    poll.register(descriptor, events)
                is_watched[descriptor] = events

        want(0, select.POLLHUP)
        while True:
            pending = end_pending - start_pending
            want(0, select.POLLIN if can_feed and self.left and not pending else select.POLLHUP)
            want(pipes.job[1], select.POLLOUT if can_feed and pending else None)
            now = time.monotonic()
            if now >= deadline:
                if self.ending is None:
                    self.ending = {"timeout": True}
                    if not self.is_ready:
                        self.failure = ["harness", "not ready in time"]
                break
            for descriptor, event in poll.poll((deadline - now) * 1000 + 1):
                if descriptor == 0:
                    if event & select.POLLIN and can_feed and self.left:
                        end_pending = os.readv(0, [memoryview(buffer)[:min(len(buffer), self.left)]])
                        start_pending = 0
                        self.left -= end_pending
                        event = 0 if end_pending else select.POLLHUP
                    if event & (select.POLLHUP | select.POLLERR) and not event & select.POLLIN:
                        # The other end is closed.
                        self.end()
                        leave_server()
                elif descriptor == pipes.job[1]:
                    try:
                        start_pending += os.write(descriptor, memoryview(buffer)[start_pending:end_pending])
                    except BlockingIOError:
                        pass
                    except BrokenPipeError:
                        can_feed = False
                    if start_pending == end_pending:
                        start_pending = end_pending = 0
                        buffer[:] = bytes(len(buffer))
                elif descriptor == pipes.status[0]:
                    text = os.read(descriptor, CHUNK)
                    message += text
                    if b"R" in text[:1] and not self.is_ready:
                        self.is_ready = True
                        deadline = time.monotonic() + self.timeout
                        message = message[1:]
                    if not text:
                        poll.unregister(descriptor)
                        self.conclude(message)
                        # Data in the pipes is read; processes that hold them open are not waited for.
                        deadline = min(deadline, time.monotonic() + 0.5)
                else:
                    second = self.take(descriptor, readers, kept, cut, limits)
                    if not second:
                        poll.unregister(descriptor)
                        del readers[descriptor]
            if self.ending is not None and not readers:
                break
        self.end()
        buffer[:] = bytes(len(buffer))
        for descriptor in (pipes.out[0], pipes.err[0], pipes.report[0], pipes.status[0], pipes.job[1]):
            os.close(descriptor)
        # The part of its job that the worker did not read.
        while self.left:
            read = os.readv(0, [memoryview(buffer)[:min(len(buffer), self.left)]])
            if not read:
                leave_server()
            self.left -= read
        buffer[:] = bytes(len(buffer))
        return {"ending": self.ending, "failure": self.failure, "cut": [cut[b"o"], cut[b"e"], cut[b"r"]]}

    def conclude(self, message):
        if message[:1] == b"E":
            self.ending = json.loads(message[1:])
        elif message[:1] == b"F" and not self.is_ready:
            text, _, _ = message[1:].partition(b"E{")
            self.failure = json.loads(text)
            self.ending = {"exit": 125}
        elif self.is_ready:
            # Whatever befalls the job's processes while the code runs is the code's doing.
            self.ending = {"signal": int(signal.SIGKILL)}
        else:
            self.failure = ["harness", "the job's first process died"]
            self.ending = {"exit": 125}

    def take(self, descriptor, readers, kept, cut, limits):
        letter = readers[descriptor]
        length = os.readv(descriptor, [self.output])
        part = min(length, max(limits[letter] - kept[letter], 0))
        kept[letter] += part
        cut[letter] += length - part
        if part:
            report_all_bytes(FRAMES[0], letter + struct.pack("<I", part))
            report_all_bytes(FRAMES[0], memoryview(self.output)[:part])
        self.output[:length] = bytes(length)
        return length > 0

    def end(self):
        """Kills all of the job's processes and waits until they are gone."""
        for kill in (os.kill, os.killpg):
            try:
                kill(self.guard, signal.SIGKILL)
            except OSError:
                pass
        until = time.monotonic() + 10.0
        while time.monotonic() < until:
            if not PLAN["processes"]:
                # A process that left the group became a child of the server when its parent died.
                kill_children()
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.0005)
            except ChildProcessError:
                return
        # Processes that the kernel holds. The next job gets another server.
        leave_server()


def leave_server():
    """Ends the server and removes its folder, because no other process may know of it any more."""
    try:
        empty(OPTIONS["folder"])
        os.rmdir(OPTIONS["folder"])
    except OSError as error:
        warn_of_rest(OPTIONS["folder"], error)
    os._exit(0)


def warn_of_rest(folder, error):
    """Reports that something stays in a folder, even if nothing reads the report."""
    try:
        write_frame(b"w", f"{folder} cannot be emptied ({type(error).__name__}: {error})".encode(errors="replace"))
    except OSError:
        pass


def kill_children():
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            for child in file.read().split():
                os.kill(int(child), signal.SIGKILL)
    except OSError:
        pass


# What protects --------------------------------------------------------------------------------------------


def probe_children(status):
    """Whether the number of processes is limited. For root it is not, whatever limit is set."""
    if not (PLAN["processes"] and PLAN["mounts"]):
        return
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
    try:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    except OSError:
        PLAN["children"] = True
    resource.setrlimit(resource.RLIMIT_NPROC, before)
    os.write(status, b"C" if PLAN["children"] else b"N")


def find_open_family():
    """A family of sockets, by number, that may lead out of a network namespace; None if none can be opened.

    Families for the network and its settings belong to a namespace, and Unix sockets need a file that both
    ends can reach.
    """
    import socket

    of_namespaces = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    # AF_ALG reaches only the kernel's ciphers.
    for family in sorted(set(range(1, 64)) - of_namespaces - {38}):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
            try:
                socket.socket(family, kind).close()
            except OSError:
                continue
            names = [name for name in dir(socket) if name.startswith("AF_") and getattr(socket, name) == family]
            return names[0] if names else f"family {family}"
    return None


def probe(status, job):
    """Tries what must not be possible, from where the code will run."""
    import socket

    wrong = []
    try:
        with socket.socket() as client:
            client.settimeout(2.0)
            client.connect(("127.0.0.1", job["port"]))
        wrong.append(["network", "a connection to this machine was made"])
    except OSError:
        pass
    if PLAN["network"] and not PLAN["seccomp"] and (family := find_open_family()) is not None:
        wrong.append(["network", f"a socket of {family} could be opened, which no namespace closes"])
    secret, server = job["file"], job["server"]

    def attempt(layer, what, action):
        try:
            action()
            wrong.append([layer, what])
        except OSError:
            pass

    def own_signals():
        import fcntl

        fcntl.fcntl(0, fcntl.F_SETOWN, server)

    attempt("files", "a file outside of its folder could be written", lambda: open(secret + ".written", "w").close())
    attempt("files", "a file that is nobody's business could be read", lambda: open(secret).close())
    attempt("files", "a file outside of its folder could be emptied", lambda: os.truncate(secret, 0))
    attempt("files", "a file outside of its folder could be emptied", lambda: os.open(secret, os.O_TRUNC))
    attempt("files", "the rights of a file outside of its folder could be changed", lambda: os.chmod(secret, 0o644))
    attempt("files", "the date of a file outside of its folder could be changed", lambda: os.utime(secret, (1, 1)))
    attempt("processes", "a process outside could be sent a signal", lambda: os.kill(server, 0))
    if LINUX and not PLAN["processes"]:
        attempt("processes", "a process outside could be sent signals of files", own_signals)
        attempt("processes", "a process outside could be slowed", lambda: os.setpriority(os.PRIO_PROCESS, server, 0))
        processors = os.sched_getaffinity(server)
        attempt("processes", "a process outside could be moved", lambda: os.sched_setaffinity(server, processors))
    if PLAN["processes"] and PLAN["seccomp"]:
        attempt("limits", "the process that counts memory could be slowed", lambda: os.setpriority(os.PRIO_PROCESS, 1, 0))
    if os.geteuid() == 0 and not PLAN["user"]:
        wrong.append(["user", "it runs as root"])
    os.write(status, b"P" + json.dumps(wrong).encode())
    os._exit(0)


def try_plan(folder, port, secret):
    """A job that looks around. Returns the layer that fails and why, or None and what is possible."""
    pipes = Pipes()
    job = json.dumps({
        "mode": "probe", "timeout": 10.0, "files": {}, "port": port, "file": secret, "server": os.getpid(),
    }).encode()
    EARLY[0] = len(job)
    server = os.getpid()
    guard = os.fork()
    if guard == 0:
        guard_process(pipes, server, 0, folder)
    pipes.close_ends_of_job()
    report_all_bytes(pipes.job[1], job)
    message, until = b"", time.monotonic() + SETUP_SECONDS
    poll = select.poll()
    poll.register(pipes.status[0], select.POLLIN)
    while time.monotonic() < until:
        if poll.poll((until - time.monotonic()) * 1000 + 1):
            text = os.read(pipes.status[0], CHUNK)
            message += text
            if not text:
                break
    reaper = Job.__new__(Job)
    reaper.guard = guard
    reaper.end()
    for descriptor in (pipes.out[0], pipes.err[0], pipes.report[0], pipes.status[0], pipes.job[1]):
        os.close(descriptor)
    if message[:1] in (b"C", b"N"):
        PLAN["children"] = message[:1] == b"C"
        message = message[1:]
    if message[:1] == b"F":
        return json.loads(message[1:].partition(b"E{")[0])
    if message[:1] == b"P":
        return [None, json.loads(message[1:].partition(b"E{")[0])]
    return ["harness", f"the probe said nothing ({message[:100]!r})"]


def find_protection(folder):
    """Drops from the plan what cannot be had; returns the layers in force and why others are not."""
    import socket

    missing, wrong = {}, []
    try:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
    except OSError:
        listener, port = None, 9
    enter_namespaces(missing)
    secret = os.path.join(OPTIONS["folder"], "secret")
    with open(secret, "w") as file:
        file.write("secret")
    if LINUX:
        PLAN["landlock"] = landlock_version() if "landlock" not in OPTIONS["without"] else 0
        if not PLAN["landlock"]:
            missing["landlock"] = os.strerror(ctypes.get_errno()) if ctypes.get_errno() else "left out"
        PLAN["seccomp"] = "seccomp" not in OPTIONS["without"]
        if not PLAN["seccomp"]:
            missing["seccomp"] = "left out"
    else:
        for layer in ("network", "processes", "mounts", "landlock", "seccomp"):
            missing[layer] = "not Linux, or a Python without ctypes"
    for _ in range(8):
        layer, found = try_plan(folder, port, secret)
        if layer is None:
            wrong = found
            break
        if layer == "uid" and PLAN["uid"] is not None:
            missing["uid"] = found
            # A container may have few users.
            PLAN["uid"] = 60000 + os.getpid() % 5000 if PLAN["uid"] >= 0x60000000 else None
        elif PLAN.get(layer):
            PLAN[layer] = 0 if layer == "landlock" else False
            missing[layer] = found
            if layer == "processes":
                PLAN["mounts"] = False
                missing.setdefault("mounts", found)
        else:
            raise Refused(layer, found)
    else:
        raise Refused("harness", "no plan works")
    if listener is not None:
        listener.close()
    for path in (secret, secret + ".written"):
        if os.path.exists(path):
            os.unlink(path)
    if PLAN["uid"] is not None:
        missing.pop("uid", None)
    reasons = {}
    for layer, reason in wrong:
        reasons.setdefault(layer, reason if layer != "user" or "uid" not in missing else f"{reason}: {missing['uid']}")
    return describe(missing, reasons)


def describe(missing, wrong):
    def layer(name, means, lacks):
        means = [mean for mean in means if mean]
        reasons = [f"{what}: {missing[key]}" for key, what in lacks if key in missing]
        if name in wrong:
            return {"name": name, "means": [], "reason": wrong[name]}
        return {"name": name, "means": means, "reason": "; ".join(reasons)}

    seccomp = "seccomp" if PLAN["seccomp"] else None
    of_processes = "namespace" if PLAN["processes"] and (PLAN["children"] or seccomp) else None
    if of_processes is None and seccomp:
        of_processes = "seccomp"
    children = "" if PLAN["children"] else "no child processes" if seccomp else None
    return [
        layer("limits", ["rlimits"], []),
        layer("network", ["namespace" if PLAN["network"] else None, seccomp],
              [("network", "namespace"), ("seccomp", "seccomp")]),
        layer("processes", [of_processes, children], [("processes", "namespace"), ("seccomp", "seccomp")]),
        layer("files", ["mounts" if PLAN["mounts"] else None,
                        f"landlock {PLAN['landlock']}" if PLAN["landlock"] else None],
              [("mounts", "mounts"), ("landlock", "landlock")]),
        layer("system calls", [seccomp], [("seccomp", "seccomp")]),
        layer("user", ["own user" if PLAN["uid"] is not None else "namespace" if PLAN["user"] else "the run's"], []),
    ]


def main():
    OPTIONS.update(json.loads(sys.argv[1]))
    OPTIONS["timeout"] = 10.0
    sys.argv[:] = ["harness"]
    # Frames go where nothing prints by mistake.
    FRAMES[0] = os.dup(1)
    os.dup2(2, 1)
    close_all_but({0, 1, 2, FRAMES[0]})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Long numbers are printed and reported as any other.
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    if LINUX:
        libc.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
    folder = os.path.join(OPTIONS["folder"], "job")
    try:
        os.chmod(OPTIONS["folder"], 0o755)
        os.mkdir(folder, 0o700)
        layers = find_protection(folder)
    except Refused as error:
        write_frame(b"h", json.dumps({"error": str(error)}).encode())
        return
    hello = {"layers": layers, "python": sys.version.split()[0], "executable": sys.executable}
    write_frame(b"h", json.dumps(hello).encode())
    buffer, number = bytearray(CHUNK), 0
    while True:
        header = b""
        while len(header) < 20:
            part = os.read(0, 20 - len(header))
            if not part:
                return
            header += part
        early, late, milliseconds, limit, report_limit = struct.unpack("<5I", header)
        job = Job(early, late, milliseconds / 1000, folder)
        write_frame(b"x", json.dumps(job.watch(buffer, limit, report_limit)).encode())
        if not PLAN["mounts"]:
            try:
                empty(folder)
            except OSError as error:
                # What stays there belongs to this server, which tries again at the end.
                warn_of_rest(folder, error)
                number += 1
                folder = os.path.join(OPTIONS["folder"], f"job{number}")
                os.mkdir(folder, 0o700)


def empty(folder):
    """Removes what a job left in a folder that is not its own file system.

    A job may have locked folders, and nested them deeper than any path is long and than files may be open: each is
    unlocked before it is listed, and what is deep is moved to the top.
    """
    os.chmod(folder, 0o700)
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while os.listdir(top):
            empty_opened(top, top, 0)
    finally:
        os.close(top)


def empty_opened(folder, top, depth):
    for name in os.listdir(folder):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            continue
        os.chmod(name, 0o700, dir_fd=folder)
        if depth == 100:
            os.rename(name, f".{os.urandom(12).hex()}", src_dir_fd=folder, dst_dir_fd=top)
            continue
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            empty_opened(inner, top, depth + 1)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=folder)


try:
    main()
except Exception as error:  # noqa: BLE001
    write_frame(b"f", f"{type(error).__name__}: {error}".encode())
leave_server()
