"""Runs code that nobody trusts, one job after another, each in a process of its own that can do little.

Four processes, of which the first two are trusted:

    server    reads jobs on standard input, watches over one at a time, writes frames to standard output
    guard     enters namespaces of the job's own and dies with the server
    init      process 1 of the job's namespace: builds its files, gives up every right, counts its memory;
              when it ends, the kernel kills all that the job has started
    worker    puts limits, Landlock and seccomp on itself and runs the code

The server never holds a job's text: it copies it from its input to the worker through one buffer, and what the
worker writes the other way, so that nothing of one job can be found in the memory of the next.

A job is two numbers (length of the early and of the late part, 32 bits each, little endian) and the two parts.
The early part is a JSON object that the worker reads before it runs anything; the late one (tests) is read when
the code has been executed. A frame is a letter, a length and a text: `h` what protects (once, at the start),
`o` standard output, `e` standard error, `r` what the worker reports, `x` how the job ended, `f` why the server ends.
"""

import errno
import json
import os
import select
import signal
import struct
import sys
import time

sys.path[:] = [path for path in sys.path if path]

import resource  # noqa: E402

try:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
except (ImportError, OSError):
    ctypes = libc = None

LINUX = sys.platform == "linux" and libc is not None
MIB = 1 << 20
CHUNK = 1 << 16
REPORT_BYTES = MIB
SETUP_SECONDS = 30.0

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CLONE_THREAD = 0x10000
NEW_MOUNTS, NEW_HOST_NAME, NEW_IPC = 0x20000, 0x4000000, 0x8000000
NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
ANY_NAMESPACE = 0x7E020000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR, SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 442, 444, 445, 446

# System calls that are refused, by number on x86_64 and aarch64 (None: there is none).
REFUSED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "sethostname": (170, 161), "setdomainname": (171, 162),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "syslog": (103, 116), "vhangup": (153, 58),
    "fanotify_init": (300, 262), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # Memory that no limit counts, and mail boxes that outlive a job.
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
}
FORKS = {"fork": (57, None), "vfork": (58, None)}
# Calls whose first argument is a process that they do something to.
TO_PROCESSES = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
}
CLONE, CLONE3, SOCKET, PRLIMIT = (56, 220), (435, 435), (41, 198), (302, 261)
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# What a program needs of /etc; and devices that hold nothing.
SETTINGS_FILES = ["ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "alternatives", "mime.types"]
DEVICES = ["null", "zero", "full", "random", "urandom"]
SYSTEM_FOLDERS = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"]

# What takes part in the protection; the probe clears what cannot be had here.
PLAN = {
    "user": False, "network": False, "processes": False, "mounts": False, "landlock": 0, "seccomp": False,
    "children": False, "uid": None,
}
OPTIONS = {}


class Refused(Exception):
    """A layer of the protection that cannot be put up."""

    def __init__(self, layer, reason):
        super().__init__(f"{layer}: {reason}")
        self.layer, self.reason = layer, reason


def check(layer, result):
    if result == -1:
        raise Refused(layer, os.strerror(ctypes.get_errno()))
    return result


def syscall(layer, number, *arguments):
    wide = [value if isinstance(value, (bytes, ctypes.Array, ctypes.Structure)) or value is None
            or not isinstance(value, int) else ctypes.c_long(value) for value in arguments]
    return check(layer, libc.syscall(ctypes.c_long(number), *wide))


def prctl(layer, option, *arguments):
    wide = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    return check(layer, libc.prctl(option, *wide, *[ctypes.c_ulong(0)] * (4 - len(wide))))


def machine():
    return os.uname().machine if struct.calcsize("P") == 8 else "32 bits"


# Namespaces ----------------------------------------------------------------------------------------------------


def unshare(layer, flags):
    check(layer, libc.unshare(flags))


def enter_namespaces(missing):
    """The server's own namespaces, which its jobs share one after another: no network, nobody's messages."""
    if not LINUX:
        return
    uid, gid = os.geteuid(), os.getegid()
    try:
        if "namespaces" in OPTIONS["without"]:
            raise Refused("namespaces", "left out")
        if uid != 0 or "root" in OPTIONS["without"]:
            raise Refused("user", "not root")
        unshare("network", NEW_NETWORK)
        PLAN["uid"] = 0x60000000 + os.getpid()
    except Refused as error:
        try:
            if error.layer == "namespaces":
                raise
            unshare("user", NEW_USER)
            for name, text in [("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")]:
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
            PLAN["user"] = True
            unshare("network", NEW_NETWORK)
        except (Refused, OSError) as error:
            reason = getattr(error, "reason", None) or error.strerror
            missing["network"] = missing["processes"] = missing["mounts"] = f"namespaces: {reason}"
            if uid == 0 and is_open_to_all():
                PLAN["uid"] = 60000 + os.getpid() % 5000
            return
    PLAN["network"] = PLAN["processes"] = PLAN["mounts"] = True
    for flag in (NEW_IPC, NEW_HOST_NAME):
        libc.unshare(flag)


def is_open_to_all():
    """Whether any user may read the interpreter's files."""
    for path in readable():
        while path != "/":
            if os.path.exists(path) and not os.stat(path).st_mode & 0o5 == 0o5:
                return False
            path = os.path.dirname(path)
    return True


def readable():
    """Folders that the code may read: the interpreter's own, the system's programs, and those of the settings."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    prefixes |= {os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))}
    folders = [path for path in SYSTEM_FOLDERS if os.path.exists(path)]
    for path in sorted(prefixes | set(OPTIONS["readable"])):
        path = os.path.abspath(path)
        if path != "/" and not any(path == known or path.startswith(known + "/") for known in folders):
            folders.append(path)
    return folders


def mount(layer, source, target, kind, flags, data=None):
    encode = lambda text: None if text is None else os.fsencode(text)  # noqa: E731
    check(layer, libc.mount(encode(source), encode(target), encode(kind), ctypes.c_ulong(flags), encode(data)))


def bind(descriptor, target, is_folder):
    os.makedirs(target if is_folder else os.path.dirname(target), mode=0o755, exist_ok=True)
    if not is_folder:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount("mounts", f"/proc/self/fd/{descriptor}", target, None, MS_BIND | MS_REC)


def build_root(uid, gid):
    """A file system of the job's own: what `readable` names, unwritable, and an empty /tmp in memory."""
    os.umask(0o022)
    mount("mounts", None, "/", None, MS_REC | MS_PRIVATE)
    base = next((path for path in ("/tmp", "/mnt", "/run", "/var") if os.path.isdir(path)), None)
    if base is None:
        raise Refused("mounts", "there is no folder to mount on")
    sources = []
    for path in readable() + [f"/etc/{name}" for name in SETTINGS_FILES] + [f"/dev/{name}" for name in DEVICES]:
        if os.path.islink(path) and path in SYSTEM_FOLDERS:
            sources.append((path, os.readlink(path), None))
        elif os.path.exists(path):
            sources.append((path, None, os.open(path, os.O_PATH | os.O_CLOEXEC)))
    mount("mounts", "tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=1024,mode=755")
    for path, link, descriptor in sources:
        target = base + path
        if link is not None:
            os.symlink(link, target)
            continue
        bind(descriptor, target, os.path.isdir(path) if path != base else True)
        os.close(descriptor)
    for name in ("tmp", "proc", "dev", ".old"):
        os.makedirs(f"{base}/{name}", mode=0o755, exist_ok=True)
    os.symlink("/tmp", f"{base}/dev/shm")
    for name, target in [("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                         ("stderr", "/proc/self/fd/2")]:
        os.symlink(target, f"{base}/dev/{name}")
    os.makedirs(f"{base}/etc", exist_ok=True)
    with open(f"{base}/etc/passwd", "w") as file:
        file.write(f"root:x:0:0:root:/root:/bin/sh\nsandbox:x:{uid}:{gid}:sandbox:/tmp:/bin/sh\n")
    try:
        mount("mounts", "proc", f"{base}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "subset=pid")
    except Refused:
        mount("mounts", "proc", f"{base}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    syscall("mounts", PIVOT_ROOT[machine()], os.fsencode(base), os.fsencode(f"{base}/.old"))
    os.chdir("/")
    check("mounts", libc.umount2(b"/.old", MNT_DETACH))
    os.rmdir("/.old")
    attributes = struct.pack("QQQQ", MS_RDONLY | MS_NOSUID, 0, 0, 0)
    syscall("mounts", SYS_MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, attributes, len(attributes))
    options = f"size={OPTIONS['folder_mb']}m,nr_inodes=16384,mode=700"
    # Inside a user namespace the folder is the job's without saying so.
    options += "" if PLAN["user"] else f",uid={uid},gid={gid}"
    mount("mounts", "tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, options)


def drop_rights(uid):
    if uid is not None:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError as error:
            raise Refused("uid", error.strerror) from None
    if not LINUX:
        return
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)
    header = struct.pack("Ii", 0x20080522, 0)
    check("privileges", libc.capset(header, bytes(24)))
    prctl("privileges", PR_SET_NO_NEW_PRIVS, 1)
    # Nobody else of this user may look into its memory.
    prctl("privileges", PR_SET_DUMPABLE, 0)


# Landlock and seccomp ------------------------------------------------------------------------------------------


def landlock_version():
    if not LINUX:
        return 0
    version = libc.syscall(ctypes.c_long(SYS_LANDLOCK_CREATE), None, ctypes.c_long(0), ctypes.c_long(1))
    return max(version, 0)


def restrict_files(version, folder):
    """Landlock: reading what `readable` names, writing in the job's folder, and nothing else."""
    handled = (1 << 13) - 1
    handled |= (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0) | (1 << 15 if version >= 5 else 0)
    rules = struct.pack("QQQ", handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = syscall("landlock", SYS_LANDLOCK_CREATE, rules, size, 0)
    read, of_files = 1 | 4 | 8, 1 | 2 | 4 | 1 << 14 | 1 << 15
    # A device of the job's own cannot be made.
    write = handled & ~(1 << 6 | 1 << 11)

    def allow(path, access):
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        if not os.path.isdir(path):
            access &= of_files
        rule = struct.pack("=Qi", access & handled, descriptor)
        syscall("landlock", SYS_LANDLOCK_ADD, ruleset, 1, rule, 0)
        os.close(descriptor)

    if PLAN["mounts"]:
        allow("/", read)
    else:
        for path in readable() + [f"/etc/{name}" for name in SETTINGS_FILES]:
            allow(path, read)
    for name in DEVICES:
        allow(f"/dev/{name}", read | 2)
    allow(folder, write)
    syscall("landlock", SYS_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def filter_calls():
    """seccomp: the calls of `REFUSED` fail with EPERM, sockets to other machines and to this one too."""
    column = {"x86_64": 0, "aarch64": 1}.get(machine())
    if column is None:
        raise Refused("seccomp", f"no list of system calls for {machine()}")
    allowed, killed, refuse = 0x7FFF0000, 0x80000000, lambda number: 0x50000 | number  # noqa: E731
    program = []

    def put(code, value, if_true=0, if_false=0):
        program.append(struct.pack("HBBI", code, if_true, if_false, value & 0xFFFFFFFF))

    def load(offset):
        put(0x20, offset)

    def answer(value):
        put(0x06, value)

    def answer_call(number, value):
        if number is not None:
            put(0x15, number, 0, 1)
            answer(value)

    load(4)
    put(0x15, AUDIT[machine()], 1, 0)
    answer(killed)
    load(0)
    if column == 0:
        # The x32 calls are the same under other numbers.
        put(0x35, 0x40000000, 0, 1)
        answer(refuse(errno.EPERM))
    for numbers in REFUSED.values():
        answer_call(numbers[column], refuse(errno.EPERM))
    # The C library takes clone where clone3 is not there; the flags of the latter cannot be looked at.
    answer_call(CLONE3[column], refuse(errno.ENOSYS))
    if not PLAN["children"]:
        for numbers in FORKS.values():
            answer_call(numbers[column], refuse(errno.EPERM))
    if not PLAN["processes"]:
        for numbers in TO_PROCESSES.values():
            put(0x15, numbers[column], 0, 4)
            load(16)
            put(0x15, os.getpid(), 1, 0)
            answer(refuse(errno.EPERM))
            answer(allowed)
    # Its own limits (0), and not those of process 1, which has the same user.
    put(0x15, PRLIMIT[column], 0, 4)
    load(16)
    put(0x15, 0, 1, 0)
    answer(refuse(errno.EPERM))
    answer(allowed)
    put(0x15, CLONE[column], 0, 4)
    load(16)
    if PLAN["children"]:
        put(0x45, ANY_NAMESPACE, 0, 1)
    else:
        put(0x45, CLONE_THREAD, 1, 0)
    answer(refuse(errno.EPERM))
    answer(allowed)
    put(0x15, SOCKET[column], 0, 4)
    load(16)
    # A socket of this machine's file system is one of the job's own, where the job has a file system of its own.
    put(0x15, 1 if PLAN["mounts"] and PLAN["network"] else 0xFFFF, 1, 0)
    answer(refuse(errno.EPERM))
    answer(allowed)
    answer(allowed)
    code = ctypes.create_string_buffer(b"".join(program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    whole = Program(len(program), ctypes.addressof(code))
    prctl("seccomp", PR_SET_SECCOMP, 2, ctypes.byref(whole))


# The job's processes -------------------------------------------------------------------------------------------


class Pipes:
    """The pipes between server and worker, each as (read, write)."""

    def __init__(self):
        self.job, self.out, self.err = os.pipe(), os.pipe(), os.pipe()
        self.report, self.status, self.life = os.pipe(), os.pipe(), os.pipe()


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
    """Waits for the worker, reaps what it left behind, and ends it where all processes together take too much."""
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


def read_exactly(descriptor, length):
    parts = []
    while length:
        part = os.read(descriptor, min(length, 1 << 20))
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


# What the worker runs ------------------------------------------------------------------------------------------

import linecache  # noqa: E402
import traceback  # noqa: E402
import types  # noqa: E402

import ast  # noqa: E402
import bisect, collections, copy, decimal, fractions, functools, heapq, itertools  # noqa: E401, E402, F401
import io, math, operator, random, re, string, typing  # noqa: E401, E402, F401

PRELUDE = """
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
del pow
"""


def encode(value):
    """Plain data in a form that is equal where Python's `==` says so; anything else is equal to nothing."""
    kind = type(value)
    if kind.__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None:
        return None
    if isinstance(value, (bool, int)):
        return "n" + int.__repr__(int(value))
    if isinstance(value, (decimal.Decimal, fractions.Fraction)):
        near = float(value)
        return encode(near) if near == value else f"?{kind.__name__}"
    if isinstance(value, float):
        if value != value:
            return "?nan"
        if value in (math.inf, -math.inf):
            return "ninf" if value > 0 else "n-inf"
        return "n" + (int.__repr__(int(value)) if value == int(value) else float.__repr__(value))
    if isinstance(value, str):
        return "s" + str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return "b" + bytes(value).hex()
    if isinstance(value, list):
        return ["l", *map(encode, list.__iter__(value))]
    if isinstance(value, tuple):
        return ["t", *map(encode, tuple.__iter__(value))]
    if isinstance(value, (set, frozenset)):
        return ["S", *sorted(map(encode, set(value)), key=json.dumps)]
    if isinstance(value, dict):
        pairs = [[encode(key), encode(dict.__getitem__(value, key))] for key in dict.__iter__(value)]
        return ["d", *sorted(pairs, key=json.dumps)]
    return f"?{kind.__name__}"


def split_tests(tests):
    """Tests of dataset authors, one assertion each where they can be taken apart.

    Each is {"setup", "test"}, or {"setup", "expression", "expected"} where it compares with plain data.
    """
    found = []
    for test in tests:
        try:
            body = ast.parse(test).body
        except (SyntaxError, ValueError) as error:
            raise Refused("tests", f"a test is no Python: {error}: {test[:80]}") from None
        first = next((i for i, node in enumerate(body) if isinstance(node, ast.Assert)), len(body))
        rest = body[first:]
        if not rest or not all(isinstance(node, ast.Assert) for node in rest):
            found.append({"setup": "", "test": test})
            continue
        setup = "\n".join(ast.unparse(node) for node in body[:first])
        for node in rest:
            found.append({"setup": setup, **split_assertion(node)})
    return found


def split_assertion(node):
    whole = {"test": ast.unparse(node)}
    compare = node.test
    if not (isinstance(compare, ast.Compare) and len(compare.ops) == 1 and isinstance(compare.ops[0], ast.Eq)):
        return whole
    sides = []
    for side in (compare.left, compare.comparators[0]):
        try:
            sides.append((True, encode(ast.literal_eval(side))))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            sides.append((False, ast.unparse(side)))
    if sides[0][0] == sides[1][0]:
        return whole
    (expected,) = [value for is_plain, value in sides if is_plain]
    (expression,) = [value for is_plain, value in sides if not is_plain]
    return {"expression": expression, "expected": expected}


def compile_text(text, name, kind="exec"):
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return compile(text, name, kind, dont_inherit=True)


def execute(job, job_descriptor, late_length, report):
    """Runs the code and what follows on it; never returns."""
    # What the code may replace in its modules is taken before it runs.
    loads, dumps, write, leave, read = json.loads, json.dumps, os.write, os._exit, read_exactly
    run, look, compiled, form, show = exec, eval, compile_text, encode, traceback.print_exception
    mode, setup, source = job["mode"], job.get("setup", ""), job.get("source", "")
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["code.py"]
    if mode == "split":
        try:
            found = split_tests(loads(read(job_descriptor, late_length)))
        except Refused as error:
            os.write(2, error.reason.encode(errors="backslashreplace"))
            leave(1)
        report_all(write, report, dumps(found))
        leave(0)
    module = types.ModuleType("__main__" if mode == "script" else "solution")
    sys.modules[module.__name__] = module
    space = module.__dict__
    space["__file__"] = "code.py"
    status = 0
    try:
        try:
            if mode == "call":
                run(PRELUDE, space)
            if setup:
                run(compiled(setup, "setup.py"), space)
            run(compiled(source, "code.py"), space)
            if mode != "script":
                late = loads(read(job_descriptor, late_length))
                if setup:
                    run(compiled(setup, "setup.py"), space)
                if late.get("setup"):
                    run(compiled(late["setup"], "test.py"), space)
                if "test" in late:
                    run(compiled(late["test"], "test.py"), space)
                    answer = late["token"]
                elif "expression" in late:
                    answer = form(look(compiled(late["expression"], "test.py", "eval"), space))
                else:
                    name = late["function"]
                    holder = space.get("Solution")
                    function = space[name] if name in space else getattr(holder(), name)
                    answer = form(function(*late["arguments"]))
                report_all(write, report, dumps(answer))
        finally:
            finish()
    except SystemExit as error:
        if error.code is None:
            status = 0
        elif isinstance(error.code, int):
            status = error.code & 0xFF
        else:
            print(error.code, file=sys.stderr)
            status = 1
    except BaseException as error:  # noqa: BLE001
        status = 1
        trace = error.__traceback__
        # The first lines are this file's.
        while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
            trace = trace.tb_next
        try:
            show(type(error), error, trace, file=sys.stderr)
        except BaseException:  # noqa: BLE001
            pass
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001
            pass
    leave(status)


def report_all(write, descriptor, text):
    data = text.encode()
    while data:
        data = data[write(descriptor, data):]


def finish():
    """What Python does at the end of a program: waits for threads, calls what was registered."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()


# The server ----------------------------------------------------------------------------------------------------

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
        for descriptor in (pipes.job[0], pipes.out[1], pipes.err[1], pipes.report[1], pipes.status[1], *pipes.life):
            os.close(descriptor)
        os.set_blocking(pipes.job[1], False)
        self.ending = None
        self.failure = None
        self.is_ready = False

    def watch(self, buffer, limit):
        pipes = self.pipes
        readers = {pipes.out[0]: b"o", pipes.err[0]: b"e", pipes.report[0]: b"r"}
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
                        # Nobody is there any more.
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
                        # What is in the pipes is taken; who holds them open is not waited for.
                        deadline = min(deadline, time.monotonic() + 0.5)
                else:
                    second = self.take(descriptor, readers, kept, cut, limit)
                    if not second:
                        poll.unregister(descriptor)
                        del readers[descriptor]
            if self.ending is not None and not readers:
                break
        self.end()
        buffer[:] = bytes(len(buffer))
        for descriptor in (pipes.out[0], pipes.err[0], pipes.report[0], pipes.status[0], pipes.job[1]):
            os.close(descriptor)
        # What the worker did not read of its job.
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

    def take(self, descriptor, readers, kept, cut, limit):
        letter = readers[descriptor]
        text = os.read(descriptor, CHUNK)
        if text:
            room = max((REPORT_BYTES if letter == b"r" else limit) - kept[letter], 0)
            part = text[:room]
            kept[letter] += len(part)
            cut[letter] += len(text) - len(part)
            if part:
                write_frame(letter, part)
        return bool(text)

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
                # Who left the group has come to the server when its parent died.
                kill_children()
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.0005)
            except ChildProcessError:
                return
        # Processes that the kernel holds: whoever asks next gets another server.
        leave_server()


def leave_server():
    """Ends the server, and its folder, of which nobody else may know any more."""
    try:
        empty(OPTIONS["folder"])
        os.rmdir(OPTIONS["folder"])
    except OSError:
        pass
    os._exit(0)


def kill_children():
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            for child in file.read().split():
                os.kill(int(child), signal.SIGKILL)
    except OSError:
        pass


# What protects -------------------------------------------------------------------------------------------------


def probe_children(status):
    """Whether the number of processes is limited: not for root, whatever he was told."""
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
    try:
        with open(job["file"] + ".written", "w"):
            pass
        wrong.append(["files", "a file outside of its folder could be written"])
    except OSError:
        pass
    try:
        with open(job["file"]):
            pass
        wrong.append(["files", "a file that is nobody's business could be read"])
    except OSError:
        pass
    try:
        os.kill(job["server"], 0)
        wrong.append(["processes", "a process outside could be sent a signal"])
    except OSError:
        pass
    os.write(status, b"P" + json.dumps(wrong).encode())
    os._exit(0)


def try_plan(folder, port, secret):
    """A job that looks around. Returns (layer that fails, reason) or (None, what was possible and must not be)."""
    pipes = Pipes()
    job = json.dumps({
        "mode": "probe", "timeout": 10.0, "files": {}, "port": port, "file": secret, "server": os.getpid(),
    }).encode()
    EARLY[0] = len(job)
    server = os.getpid()
    guard = os.fork()
    if guard == 0:
        guard_process(pipes, server, 0, folder)
    for descriptor in (pipes.job[0], pipes.out[1], pipes.err[1], pipes.report[1], pipes.status[1], *pipes.life):
        os.close(descriptor)
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
    return describe(missing, {layer: reason for layer, reason in wrong})


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
        layer("network", ["namespace" if PLAN["network"] else None, seccomp], [("network", "namespace"), ("seccomp", "seccomp")]),
        layer("processes", [of_processes, children], [("processes", "namespace"), ("seccomp", "seccomp")]),
        layer("files", ["mounts" if PLAN["mounts"] else None,
                        f"landlock {PLAN['landlock']}" if PLAN["landlock"] else None],
              [("mounts", "mounts"), ("landlock", "landlock")]),
        layer("system calls", [seccomp], [("seccomp", "seccomp")]),
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
    if LINUX:
        libc.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
    folder = os.path.join(OPTIONS["folder"], "job")
    try:
        os.mkdir(folder, 0o700)
        layers = find_protection(folder)
    except Refused as error:
        write_frame(b"h", json.dumps({"error": str(error)}).encode())
        return
    hello = {"layers": layers, "python": sys.version.split()[0], "executable": sys.executable}
    write_frame(b"h", json.dumps(hello).encode())
    buffer = bytearray(CHUNK)
    while True:
        header = b""
        while len(header) < 16:
            part = os.read(0, 16 - len(header))
            if not part:
                return
            header += part
        early, late, milliseconds, limit = struct.unpack("<IIII", header)
        job = Job(early, late, milliseconds / 1000, folder)
        write_frame(b"x", json.dumps(job.watch(buffer, limit)).encode())
        if not PLAN["mounts"]:
            empty(folder)


def empty(folder):
    """Removes what a job left in a folder that is not its own file system."""
    for place, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.unlink(os.path.join(place, name))
        for name in folders:
            path = os.path.join(place, name)
            if os.path.islink(path):
                os.unlink(path)
            else:
                os.rmdir(path)


try:
    main()
except Exception as error:  # noqa: BLE001
    write_frame(b"f", f"{type(error).__name__}: {error}".encode())
leave_server()
