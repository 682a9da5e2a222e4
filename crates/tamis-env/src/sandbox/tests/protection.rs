//! Things that a hostile program can neither reach nor use up.

use super::*;

/// Prints the names of attempts that succeed.
const ATTEMPT: &str = "
def attempt(name, action):
    try:
        action()
        print(name)
    except OSError:
        pass
";

#[test]
fn a_fork_bomb_stays_small() {
    let Some(sandbox) = sandbox() else { return };
    if !has(sandbox, "processes") {
        return;
    }
    let count = "
import os, time
n = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(1000)
        n += 1
except OSError:
    print(n)
";
    let count: usize = print(sandbox, count).parse().unwrap();
    assert!(count <= settings().max_processes, "{count}");
    let bomb = "
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
";
    assert_eq!(run_for(sandbox, bomb, Duration::from_secs(1)).exit, Exit::TimedOut);
    let threads = "
import threading, time
threading.stack_size(65536)
try:
    for n in range(100000):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
except RuntimeError:
    print(n)
    import os, sys
    sys.stdout.flush()
    os._exit(0)
";
    if may_have_children(sandbox) {
        let count: usize = print(sandbox, threads).parse().unwrap();
        assert!(count <= settings().max_processes, "{count}");
    }
    assert_eq!(print(sandbox, "print(1)"), "1");
}

#[test]
fn memory_is_limited() {
    let Some(sandbox) = sandbox() else { return };
    let execution = run(sandbox, "x = bytearray(10 * 10**9)");
    assert_eq!((execution.exit, execution.stderr.lines().last()), (Exit::Exited(1), Some("MemoryError")));
    if may_have_children(sandbox) {
        let many = "
import os, time
for _ in range(6):
    if os.fork() == 0:
        x = bytearray(200 * 10**6)
        x[::4096] = bytes(len(x[::4096]))
        time.sleep(1000)
time.sleep(1000)
";
        assert_eq!(run(sandbox, many).exit, Exit::OutOfMemory);
    }
    let fills = "
try:
    for n in range(1000):
        with open(f'file{n}', 'wb') as file:
            file.write(bytes(2**22))
except OSError as error:
    print(n)
";
    if sandbox.protection().to_string().contains("mounts") {
        assert_eq!(print(sandbox, fills), "2");
    } else {
        println!("skipped: the size of the working folder is not limited here");
    }
}

#[test]
fn files_of_others_are_neither_read_nor_written() {
    let Some(sandbox) = sandbox() else { return };
    if !has(sandbox, "files") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "key").unwrap();
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    let tries = format!(
        "
import os
secret, home, pid = {:?}, {home:?}, {}
def attempt(name, function):
    try:
        print(name, repr(function()))
    except (OSError, ValueError):
        pass
attempt('read', lambda: open(secret).read())
attempt('overwritten', lambda: open(secret, 'w').write('x'))
attempt('appended', lambda: open(secret, 'a').write('x'))
attempt('removed', lambda: os.unlink(secret))
attempt('linked', lambda: (os.link(secret, 'here'), open('here').read()))
attempt('by symbolic link', lambda: (os.symlink(secret, 'there'), open('there').read()))
attempt('listed', lambda: os.listdir(os.path.dirname(secret)))
attempt('environment', lambda: open(f'/proc/{{pid}}/environ').read())
attempt('shadow', lambda: open('/etc/shadow').read())
attempt('up', lambda: open('../' * 30 + secret).read())
attempt('through root', lambda: open('/proc/self/root' + secret).read())
attempt('through init', lambda: open('/proc/1/root' + secret).read())
attempt('memory', lambda: open('/proc/1/mem', 'r+b').write(b'x'))
attempt('chroot', lambda: os.chroot('.'))
for name in os.listdir(home) if os.path.isdir(home) and home != '/root' and os.access(home, os.R_OK) else []:
    attempt('home', lambda: open(os.path.join(home, name)).read(10))
for path in ['/', '/usr', '/etc', '/root', '/dev', '/bin', '/var/tmp', '/run', home, os.path.dirname(os.__file__)]:
    attempt('written ' + path, lambda: open(os.path.join(path, 'tamis-was-here'), 'w').write('x'))
print('mine', open('x', 'w').write('xyz'), open('x').read(), sorted(os.listdir('.')))
",
        secret.display().to_string(),
        std::process::id(),
    );
    assert_eq!(print(sandbox, &tries), "mine 3 xyz ['there', 'x']");
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "key");
    // Folders named in the settings can be read but not written.
    let readable = SandboxSettings { readable: vec![folder.path().to_owned()], ..settings() };
    let reader = Sandbox::new(&readable).unwrap();
    let read = format!("print(open({0:?}).read())\nopen({0:?}, 'w')", secret.display().to_string());
    let execution = run(&reader, &read);
    assert_eq!(
        (execution.stdout.as_str(), execution.exit),
        ("key\n", Exit::Exited(1)),
        "{}",
        execution.stderr
    );
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "key");
}

#[test]
fn there_is_no_network() {
    let Some(sandbox) = sandbox() else { return };
    if !has(sandbox, "network") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tries = format!(
        "
import socket
for family, place in [(socket.AF_INET, ('127.0.0.1', {})), (socket.AF_INET, ('1.1.1.1', 80)),
                      (socket.AF_INET6, ('::1', {0})), (socket.AF_UNIX, '/run/docker.sock'),
                      (socket.AF_UNIX, '\\0tamis')]:
    try:
        with socket.socket(family) as client:
            client.settimeout(3)
            client.connect(place)
        print('connected', place)
    except OSError:
        pass
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b'x', ('127.0.0.1', 9))
    print('sent')
except OSError:
    pass
one, two = socket.socketpair()
one.send(b'x')
print(two.recv(1))
",
        listener.local_addr().unwrap().port()
    );
    assert_eq!(print(sandbox, &tries), "b'x'");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

/// A network namespace does not contain every family of sockets. Without seccomp, `no network` is claimed
/// only if no other family can be opened.
#[test]
fn no_network_is_not_claimed_with_sockets_of_other_families() {
    let Ok(sandbox) = Sandbox::without(&settings(), &["seccomp"]) else { return };
    let line = sandbox.protection().to_string();
    let opens = "
import socket
for family in sorted(set(range(1, 64)) - {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, 38}):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
        try:
            socket.socket(family, kind).close()
            print(family)
        except OSError:
            pass
";
    let families = print(&sandbox, opens);
    if !line.contains("(namespace") && !has(&sandbox, "network") {
        println!("skipped: no namespaces here ({line})");
        return;
    }
    assert_eq!(has(&sandbox, "network"), families.is_empty(), "{families}: {line}");
    if !families.is_empty() {
        assert!(line.contains("no network (a socket of "), "{line}");
        assert!(!sandbox.protection().fulfils(Required::NoNetwork));
    }
}

#[test]
fn processes_outside_are_out_of_reach() {
    let Some(sandbox) = sandbox() else { return };
    if !has(sandbox, "processes") {
        return;
    }
    let mut victim = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let kills = format!(
        "
import os, signal
for pid in [os.getppid(), 1, {}, {}]:
    for number in [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSTOP]:
        try:
            os.kill(pid, number)
        except OSError:
            pass
print('alive')
",
        std::process::id(),
        victim.id(),
    );
    let execution = run(sandbox, &kills);
    assert_eq!((execution.stdout.as_str(), execution.exit), ("alive\n", Exit::Exited(0)));
    assert!(matches!(victim.try_wait(), Ok(None)));
    victim.kill().unwrap();
    victim.wait().unwrap();
    // Process 1 of a job has the job's user.
    let limits = "
import resource
for which in [resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE]:
    try:
        resource.prlimit(1, which, (0, 0))
    except OSError:
        pass
print('alive')
";
    assert_eq!(run(sandbox, limits).exit, Exit::Exited(0));
    // It counts the job's memory. The job cannot slow or move it, under any name. The job may do so to
    // itself.
    let priorities = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def ioprio(kind, who):
    number = {'x86_64': 251, 'aarch64': 30}[os.uname().machine]
    if libc.syscall(number, kind, who, 2 << 13 | 7) != 0:
        raise OSError(ctypes.get_errno(), 'ioprio_set')
for who in (1, os.getppid()):
    attempt('priority', lambda: os.setpriority(os.PRIO_PROCESS, who, 0))
    attempt('affinity', lambda: os.sched_setaffinity(who, os.sched_getaffinity(0)))
    attempt('scheduler', lambda: os.sched_setscheduler(who, os.SCHED_OTHER, os.sched_param(0)))
    attempt('parameter', lambda: os.sched_setparam(who, os.sched_param(0)))
    attempt('input and output', lambda: ioprio(1, who))
for kind in (os.PRIO_PGRP, os.PRIO_USER):
    attempt('priority of many', lambda: os.setpriority(kind, 0, 0))
    attempt('input and output of many', lambda: ioprio(kind + 1, 0))
for who in (0, os.getpid()):
    attempt('own priority', lambda: os.setpriority(os.PRIO_PROCESS, who, 1))
    attempt('own affinity', lambda: os.sched_setaffinity(who, os.sched_getaffinity(0)))
    attempt('own input and output', lambda: ioprio(1, who))
";
    if has(sandbox, "system calls") {
        let own = "own priority\nown affinity\nown input and output\n".repeat(2);
        assert_eq!(run(sandbox, &[ATTEMPT, priorities].concat()).stdout, own);
    }
    // It can only send signals to itself.
    run(sandbox, "import os\nos.kill(-1, 9)");
    run(sandbox, "import os\nos.killpg(0, 9)");
    assert_eq!(print(sandbox, "print(1)"), "1");
}

/// Without namespaces the code shares processes and files with the user of the run.
#[test]
fn without_namespaces_neither_processes_nor_files_are_changed() {
    for without in [&["namespaces"][..], &["namespaces", "landlock"]] {
        let Ok(sandbox) = Sandbox::without(&settings(), without) else { return };
        if !has(&sandbox, "processes") {
            continue;
        }
        let mut victim = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine");
        std::fs::write(&file, "mine").unwrap();
        let before = std::fs::metadata(&file).unwrap();
        let tries = format!(
            "{ATTEMPT}
import ctypes, fcntl, os
victim, file = {}, {:?}
read, write = os.pipe()
for command in (8, 10, 15):
    attempt(f'fcntl {{command}}', lambda: fcntl.fcntl(read, command, victim if command == 8 else 9))
for request in (0x8901, 0x8902):
    attempt('ioctl', lambda: fcntl.ioctl(read, request, victim.to_bytes(4, 'little')))
try:
    fcntl.fcntl(read, fcntl.F_SETFL, fcntl.fcntl(read, fcntl.F_GETFL) | os.O_ASYNC)
    os.write(write, b'x')
except OSError:
    pass
attempt('setpriority', lambda: os.setpriority(os.PRIO_PROCESS, victim, 19))
attempt('affinity', lambda: os.sched_setaffinity(victim, {{0}}))
attempt('scheduler', lambda: os.sched_setscheduler(victim, os.SCHED_BATCH, os.sched_param(0)))
libc = ctypes.CDLL(None, use_errno=True)
def death():
    if libc.prctl(1, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), 'prctl')
attempt('death', death)
attempt('chmod', lambda: os.chmod(file, 0))
attempt('owner', lambda: os.chown(file, os.getuid(), os.getgid()))
attempt('date', lambda: os.utime(file, (1, 1)))
attempt('attribute', lambda: os.setxattr(file, 'user.x', b'x'))
print('end')
",
            victim.id(),
            file.display().to_string(),
        );
        assert_eq!(print(&sandbox, &tries), "end", "{without:?}");
        std::thread::sleep(Duration::from_millis(100));
        assert!(matches!(victim.try_wait(), Ok(None)));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let after = std::fs::metadata(&file).unwrap();
        assert_eq!(
            (before.permissions(), before.modified().unwrap()),
            (after.permissions(), after.modified().unwrap())
        );
    }
}

/// Sockets in files lead out of the job if it can see the file.
#[cfg(unix)]
#[test]
fn sockets_outside_are_out_of_reach() {
    use std::os::unix::net::{UnixDatagram, UnixListener};

    let folder = tempfile::tempdir().unwrap();
    let datagrams = UnixDatagram::bind(folder.path().join("datagrams")).unwrap();
    let streams = UnixListener::bind(folder.path().join("streams")).unwrap();
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
    for path in ["", "datagrams", "streams"] {
        std::fs::set_permissions(folder.path().join(path), open.clone()).unwrap();
    }
    let settings = SandboxSettings { readable: vec![folder.path().to_owned()], ..settings() };
    for without in [&[][..], &["namespaces"], &["namespaces", "landlock"]] {
        let Ok(sandbox) = Sandbox::without(&settings, without) else { return };
        if !has(&sandbox, "system calls") {
            return;
        }
        let tries = format!(
            "{ATTEMPT}
import os, socket
folder = {:?}
def connect():
    socket.socket(socket.AF_UNIX).connect(folder + '/streams')
def send():
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', folder + '/datagrams')
def send_by_pair(kind, message):
    one, two = socket.socketpair(socket.AF_UNIX, kind)
    if message:
        one.sendmsg([b'x'], [], 0, folder + '/datagrams')
    else:
        one.sendto(b'x', folder + '/datagrams')
attempt('connect', connect)
attempt('send', send)
attempt('pair', lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    attempt('sendto', lambda: send_by_pair(kind, False))
    try:
        send_by_pair(kind, True)
    except OSError:
        pass
one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
one.send(b'x')
print(two.recv(1))
",
            folder.path().display().to_string()
        );
        assert_eq!(print(&sandbox, &tries), "b'x'", "{without:?}");
    }
    datagrams.set_nonblocking(true).unwrap();
    streams.set_nonblocking(true).unwrap();
    assert!(datagrams.recv(&mut [0; 8]).is_err() && streams.accept().is_err());
}

/// Code started by root does not run as root, or a message reports it.
#[test]
fn root_is_told() {
    let Ok(sandbox) = Sandbox::without(&settings(), &["namespaces", "own user"]) else { return };
    let id = print(&sandbox, "import os; print(os.geteuid())");
    assert_eq!(sandbox.protection().has("user"), id != "0");
    if id == "0" {
        let line = sandbox.protection().to_string();
        assert!(line.contains("not root (it runs as root: "), "{line}");
        assert!(!sandbox.protection().fulfils(Required::All));
    }
}

#[test]
fn a_protection_is_one_line() {
    let layer = |name: &str, means: &[&str], reason: &str| Layer {
        name: name.to_owned(),
        means: means.iter().map(|&text| text.to_owned()).collect(),
        reason: reason.to_owned(),
    };
    let mut protection = Protection {
        layers: vec![
            layer("limits", &["rlimits"], ""),
            layer("network", &["namespace", "seccomp"], ""),
            layer("processes", &["namespace"], ""),
            layer("files", &["mounts", "landlock 7"], ""),
            layer("system calls", &["seccomp"], ""),
            layer("user", &["own user"], ""),
        ],
        python: "3.11.7".to_owned(),
    };
    insta::assert_snapshot!(protection, @"sandbox (Python 3.11.7): limits, no network (namespace, seccomp), own processes (namespace), read-only files (mounts, landlock 7), fewer system calls (seccomp), not root (own user)");
    protection.layers[1].reason = "namespace: no".to_owned();
    protection.layers[3] = layer(
        "files",
        &[],
        "mounts: namespaces: Operation not permitted; landlock: Function not implemented",
    );
    insta::assert_snapshot!(protection, @"sandbox (Python 3.11.7): limits, no network (namespace, seccomp; without namespace: no), own processes (namespace), fewer system calls (seccomp), not root (own user); NOT in force: read-only files (mounts: namespaces: Operation not permitted; landlock: Function not implemented)");
    assert!(protection.fulfils(Required::NoNetwork) && !protection.fulfils(Required::All));
}
