"""Runs untrusted code, one job after another, each in a process of its own that can do little.

Four processes; the first two are trusted:

    server    reads jobs on standard input, watches over one at a time, writes frames to standard output
    guard     enters namespaces of the job's own and dies with the server
    init      process 1 of the job's namespace: builds its files, gives up every right, counts its memory;
              when it ends, the kernel kills all that the job has started
    worker    puts limits, Landlock and seccomp on itself and runs the code

The server never holds a job's text: it copies it from its input to the worker through one buffer, and what
the worker writes the other way, so that nothing of one job can be found in the memory of the next.

A job is five numbers (lengths of its early and its late part, milliseconds, bytes of output and of what the worker
reports; 32 bits each, little endian) and the two parts. The early part is a JSON object that the worker reads
before it runs anything; the late one (tests) is read when the code has been executed. A frame is a letter, a
length and a text: `h` what protects (once, at the start), `o` standard output, `e` standard error, `r` what
the worker reports, `x` how the job ended, `f` why the server ends.

The program is made of the files of this folder, one after another: `protection.py`, `processes.py`,
`worker.py`, `server.py`.
"""

import errno
import json
import os
import select
import signal
import stat
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
SETUP_SECONDS = 30.0

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CLONE_THREAD = 0x10000
NEW_MOUNTS, NEW_HOST_NAME, NEW_IPC = 0x20000, 0x4000000, 0x8000000
NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
ANY_NAMESPACE = 0x7E020000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, AT_EMPTY_PATH = -100, 0x8000, 0x1000
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
    "process_mrelease": (448, 448),
    # All but pairs that are connected to each other: a name of a socket may lead out of the job.
    "socket": (41, 198), "connect": (42, 203),
    # Memory that no limit counts, and mail boxes that outlive a job.
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
}
FORKS = {"fork": (57, None), "vfork": (58, None)}
# Calls whose first argument is a process that they do something to.
TO_PROCESSES = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
}
# Calls that slow or steer the process that they name; process 1, which counts the job's memory, can be named too. The
# process is the first argument, of those below the second, after which kind of number it is: of one process.
OF_OTHERS = {
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "migrate_pages": (256, 238), "move_pages": (279, 239),
}
OF_OTHERS_BY_KIND = {"setpriority": ((141, 140), 0), "ioprio_set": ((251, 30), 1)}
# Calls that change what a file is rather than what it holds, which Landlock does not know.
OF_FILES = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
}
CLONE, CLONE3, PRLIMIT = (56, 220), (435, 435), (302, 261)
PRCTL, FCNTL, IOCTL, SOCKETPAIR, SENDTO = (157, 167), (72, 25), (16, 29), (53, 199), (44, 206)
TRUNCATE, OPENAT2, OPENS = (76, 45), (437, 437), (((2, None), 1), ((257, 56), 2))
# Operations of fcntl and ioctl: who gets a file's signals, and which; leases; a file's flags.
SIGNALS_OF_FILES, OWNERS_OF_FILES, FLAGS_OF_FILES = (8, 10, 15, 1024), (0x8901, 0x8902), (0x40086602, 0x401C5820)
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# The files of /etc that a program needs, and devices that hold nothing.
SETTINGS_FILES = [
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "alternatives", "mime.types",
]
DEVICES = ["null", "zero", "full", "random", "urandom"]
SYSTEM_FOLDERS = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"]

# The parts of the protection. The probe clears those that are not available here.
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


# Namespaces -----------------------------------------------------------------------------------------------


def unshare(layer, flags):
    check(layer, libc.unshare(flags))


def enter_namespaces(missing):
    """The server's own namespaces, which its jobs share one after another: no network, no messages of others."""
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
            maps = [("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")]
            for name, text in maps:
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
            PLAN["user"] = True
            unshare("network", NEW_NETWORK)
        except (Refused, OSError) as error:
            reason = getattr(error, "reason", None) or error.strerror
            missing["network"] = missing["processes"] = missing["mounts"] = f"namespaces: {reason}"
            if uid == 0 and (closed := find_closed()) is None:
                PLAN["uid"] = 60000 + os.getpid() % 5000
            elif uid == 0:
                missing["uid"] = f"{closed} is not open to other users"
            return
    PLAN["network"] = PLAN["processes"] = PLAN["mounts"] = True
    for flag in (NEW_IPC, NEW_HOST_NAME):
        libc.unshare(flag)


def find_closed():
    """What keeps other users from the interpreter's files, or from the working folder; None if nothing does."""
    if "own user" in OPTIONS["without"]:
        return sys.prefix
    for path in readable() + [OPTIONS["folder"]]:
        while path != "/":
            if os.path.exists(path):
                needed = 0o5 if os.path.isdir(path) else 0o4
                if os.stat(path).st_mode & needed != needed:
                    return path
            path = os.path.dirname(path)
    return None


def readable():
    """Folders that the code may read: the interpreter's, the system's programs, and those of the settings."""
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
    flags = ctypes.c_ulong(flags)
    check(layer, libc.mount(encode(source), encode(target), encode(kind), flags, encode(data)))


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
    others = [f"/etc/{name}" for name in SETTINGS_FILES] + [f"/dev/{name}" for name in DEVICES]
    for path in readable() + others:
        if path == "/tmp":
            # The job has one of its own.
            continue
        if os.path.islink(path) and path in SYSTEM_FOLDERS:
            sources.append((path, os.readlink(path), None, False))
        elif os.path.exists(path):
            # A mount covers the folder below it.
            sources.append((path, None, os.open(path, os.O_PATH | os.O_CLOEXEC), os.path.isdir(path)))
    mount("mounts", "tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=1024,mode=755")
    # First, so that what `readable` names in /tmp lies in it and is not covered.
    options = f"size={OPTIONS['folder_mb']}m,nr_inodes=16384,mode=700"
    # Inside a user namespace the folder is the job's without saying so.
    options += "" if PLAN["user"] else f",uid={uid},gid={gid}"
    os.makedirs(f"{base}/tmp", mode=0o755)
    mount("mounts", "tmpfs", f"{base}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, options)
    own = os.open(f"{base}/tmp", os.O_PATH | os.O_CLOEXEC)
    for path, link, descriptor, is_folder in sources:
        target = base + path
        if link is not None:
            os.symlink(link, target)
            continue
        bind(descriptor, target, is_folder)
        os.close(descriptor)
    for name in ("proc", "dev", ".old"):
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
    attributes = struct.pack("QQQQ", 0, MS_RDONLY, 0, 0)
    syscall("mounts", SYS_MOUNT_SETATTR, own, b"", AT_EMPTY_PATH, attributes, len(attributes))
    os.close(own)


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
    # Other processes of this user may not read its memory.
    prctl("privileges", PR_SET_DUMPABLE, 0)


# Landlock and seccomp -------------------------------------------------------------------------------------


def landlock_version():
    if not LINUX:
        return 0
    version = libc.syscall(ctypes.c_long(SYS_LANDLOCK_CREATE), None, ctypes.c_long(0), ctypes.c_long(1))
    return max(version, 0)


def restrict_files(version, folder):
    """Landlock: reading what `readable` names, writing in the job's folder, and nothing else."""
    handled = (1 << 13) - 1
    for right, since in [(13, 2), (14, 3), (15, 5)]:
        handled |= 1 << right if version >= since else 0
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
    """seccomp: the calls of `REFUSED` fail with EPERM, and those whose arguments reach out of the job."""
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

    def refuse_argument(number, place, values):
        """One of these values as this argument."""
        put(0x15, number, 0, 2 * len(values) + 2)
        load(16 + 8 * place)
        for value in values:
            put(0x15, value, 0, 1)
            answer(refuse(errno.EPERM))
        answer(allowed)

    for numbers in REFUSED.values():
        answer_call(numbers[column], refuse(errno.EPERM))
    # The C library uses clone if clone3 is missing. The flags of clone3 cannot be checked.
    answer_call(CLONE3[column], refuse(errno.ENOSYS))
    if not PLAN["children"]:
        for numbers in FORKS.values():
            answer_call(numbers[column], refuse(errno.EPERM))
    if not PLAN["processes"]:
        refuse_argument(FCNTL[column], 1, SIGNALS_OF_FILES)
        # It would outlive the process that watches over it.
        refuse_argument(PRCTL[column], 0, (PR_SET_PDEATHSIG,))
        for numbers in TO_PROCESSES.values():
            put(0x15, numbers[column], 0, 4)
            load(16)
            put(0x15, os.getpid(), 1, 0)
            answer(refuse(errno.EPERM))
            answer(allowed)
    # Its own (0, or the worker's number), and not those of process 1, which has the same user.
    for numbers in [PRLIMIT, *OF_OTHERS.values()]:
        put(0x15, numbers[column], 0, 5)
        load(16)
        put(0x15, 0, 2, 0)
        put(0x15, os.getpid(), 1, 0)
        answer(refuse(errno.EPERM))
        answer(allowed)
    for numbers, of_process in OF_OTHERS_BY_KIND.values():
        put(0x15, numbers[column], 0, 7)
        load(16)
        put(0x15, of_process, 0, 3)
        load(24)
        put(0x15, 0, 2, 0)
        put(0x15, os.getpid(), 1, 0)
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
    owners = () if PLAN["processes"] else OWNERS_OF_FILES
    flags = () if PLAN["mounts"] else FLAGS_OF_FILES
    if owners or flags:
        refuse_argument(IOCTL[column], 1, owners + flags)
    if not PLAN["mounts"]:
        for numbers in OF_FILES.values():
            answer_call(numbers[column], refuse(errno.EPERM))
        if PLAN["landlock"] < 3:
            answer_call(TRUNCATE[column], refuse(errno.EPERM))
            answer_call(OPENAT2[column], refuse(errno.ENOSYS))
            for numbers, place in OPENS:
                # Landlock does not see a file that is emptied without being opened for writing.
                if numbers[column] is not None:
                    put(0x15, numbers[column], 0, 6)
                    load(16 + 8 * place)
                    put(0x54, os.O_TRUNC | os.O_ACCMODE)
                    put(0x15, os.O_TRUNC, 1, 0)
                    put(0x15, os.O_TRUNC | os.O_ACCMODE, 0, 1)
                    answer(refuse(errno.EPERM))
                    answer(allowed)
    # A pair is AF_UNIX, and connected for good: SOCK_STREAM or SOCK_SEQPACKET.
    put(0x15, SOCKETPAIR[column], 0, 8)
    load(16)
    put(0x15, 1, 0, 4)
    load(24)
    put(0x54, 0xF)
    put(0x15, 1, 2, 0)
    put(0x15, 5, 1, 0)
    answer(refuse(errno.EPERM))
    answer(allowed)
    # An address; both halves must be 0.
    put(0x15, SENDTO[column], 0, 6)
    load(48)
    put(0x15, 0, 0, 2)
    load(52)
    put(0x15, 0, 1, 0)
    answer(refuse(errno.EPERM))
    answer(allowed)
    answer(allowed)
    code = ctypes.create_string_buffer(b"".join(program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    whole = Program(len(program), ctypes.addressof(code))
    prctl("seccomp", PR_SET_SECCOMP, 2, ctypes.byref(whole))


