//! Hostile programs. Where the kernel lacks a layer, what it would prevent is left out, and that is said.

use std::net::TcpListener;
use std::sync::LazyLock;
use std::time::Instant;

use tamis_core::setting::TimeSpan;

use super::*;

/// Long enough for a machine with much else to do.
const LONG: Duration = Duration::from_secs(120);

fn settings() -> SandboxSettings {
    SandboxSettings {
        timeout: TimeSpan(LONG),
        memory_mb: 512,
        max_output: 10_000,
        max_processes: 8,
        folder_mb: 8,
        ..SandboxSettings::default()
    }
}

/// `None` where there is no Python.
fn sandbox() -> Option<&'static Sandbox> {
    static SANDBOX: LazyLock<Result<Sandbox, SandboxError>> = LazyLock::new(|| Sandbox::new(&settings()));
    match &*SANDBOX {
        Ok(sandbox) => Some(sandbox),
        Err(SandboxError::Start { python, reason }) => {
            println!("skipped: no usable {python}: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn has(sandbox: &Sandbox, layer: &str) -> bool {
    let has = sandbox.protection().has(layer);
    if !has {
        println!("skipped: {}", sandbox.protection());
    }
    has
}

fn may_have_children(sandbox: &Sandbox) -> bool {
    let processes = sandbox.protection().layers.iter().find(|layer| layer.name == "processes").unwrap();
    let may = processes.is_in_force() && !processes.means.iter().any(|means| means == "no child processes");
    if !may {
        println!("skipped: {}", sandbox.protection());
    }
    may
}

fn run(sandbox: &Sandbox, source: &str) -> Execution {
    run_for(sandbox, source, LONG)
}

fn run_for(sandbox: &Sandbox, source: &str, timeout: Duration) -> Execution {
    let job = Job {
        mode: Mode::Script,
        timeout,
        setup: "",
        source,
        stdin: "",
        files: None,
        late: None,
        max_report: 0,
    };
    sandbox.execute(&job).unwrap()
}

fn print(sandbox: &Sandbox, source: &str) -> String {
    let execution = run(sandbox, source);
    assert_eq!(execution.exit, Exit::Exited(0), "{execution:?}");
    execution.stdout.trim_end().to_owned()
}

#[test]
fn programs_run() {
    let Some(sandbox) = sandbox() else { return };
    println!("{}", sandbox.protection());
    let code = Code {
        source: "import helper, sys\nprint(helper.double(int(input())), open('data/n').read())\n\
                 print('é', file=sys.stderr)\nsys.exit(7)"
            .to_owned(),
        stdin: "21\n".to_owned(),
        files: BTreeMap::from([
            ("helper.py".to_owned(), "def double(n): return 2 * n".to_owned()),
            ("data/n".to_owned(), "5".to_owned()),
        ]),
    };
    let execution = sandbox.run(&code).unwrap();
    assert_eq!(execution.stdout, "42 5\n");
    assert_eq!(execution.stderr, "é\n");
    assert_eq!((execution.exit, execution.truncated), (Exit::Exited(7), 0));
    let failed = run(sandbox, "def f(x):\n    return 1 / x\nf(0)");
    assert_eq!(failed.exit, Exit::Exited(1));
    assert!(
        failed
            .stderr
            .starts_with("Traceback (most recent call last):\n  File \"code.py\", line 3, in <module>\n"),
        "{}",
        failed.stderr
    );
    assert!(failed.stderr.ends_with("ZeroDivisionError: division by zero\n"), "{}", failed.stderr);
    assert_eq!(run(sandbox, "def").exit, Exit::Exited(1));
    assert_eq!(run(sandbox, "raise SystemExit('no')").stderr, "no\n");
    let ended = "import atexit, threading, time\natexit.register(print, 'last')\n\
        threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()";
    assert_eq!(print(sandbox, ended), "thread\nlast");
    assert_eq!(run(sandbox, "import os; os.kill(os.getpid(), 11)").exit, Exit::Killed(11));
    let input = "9\n".repeat(1_000_000);
    let code = Code { stdin: input, ..Code::new("import sys; print(len(sys.stdin.read()))") };
    assert_eq!(sandbox.run(&code).unwrap().stdout, "2000000\n");
}

#[test]
fn an_endless_program_is_ended() {
    let Some(sandbox) = sandbox() else { return };
    for source in [
        "while True: pass",
        "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n\
         time.sleep(10**6)",
        "try:\n    while True: pass\nexcept BaseException:\n    while True: pass",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(10**6,)).start()",
    ] {
        let execution = run_for(sandbox, source, Duration::from_millis(700));
        assert_eq!(execution.exit, Exit::TimedOut, "{source}");
    }
    let said = run_for(sandbox, "print('before', flush=True)\nwhile True: pass", Duration::from_secs(5));
    assert_eq!((said.stdout.as_str(), said.exit), ("before\n", Exit::TimedOut));
    assert_eq!(print(sandbox, "print(1)"), "1");
}

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
    // What the settings name may be read, and not written.
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
    // Everything that it may send a signal to is itself.
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
            "
import ctypes, fcntl, os
victim, file = {}, {:?}
def attempt(name, action):
    try:
        action()
        print(name)
    except OSError:
        pass
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

/// Sockets of files lead out of the job, where it may see the file.
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
            "
import os, socket
folder = {:?}
def attempt(name, action):
    try:
        action()
        print(name)
    except OSError:
        pass
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

/// Folders that are locked, or nested deeper than any path, cost nobody else anything.
#[test]
fn a_working_folder_is_emptied_whatever_is_in_it() {
    for without in [&["namespaces"][..], &["namespaces", "seccomp"]] {
        let Ok(sandbox) = Sandbox::without(&settings(), without) else { return };
        let number = sandbox.lock_idle()[0].number();
        for leaves in [
            "import os\nfor _ in range(1500):\n    os.mkdir('deep')\n    os.chdir('deep')\nopen('x', 'w')",
            "import os\nos.mkdir('locked')\nopen('locked/x', 'w')\nos.symlink('/', 'locked/y')\n\
             try:\n    os.chmod('locked', 0)\n    os.chmod('.', 0)\nexcept OSError: pass",
        ] {
            assert_eq!(run(&sandbox, leaves).exit, Exit::Exited(0));
            assert_eq!(print(&sandbox, "import os; print(os.listdir('.'))"), "[]");
        }
        assert_eq!(sandbox.lock_idle()[0].number(), number, "another harness took its place");
    }
}

/// What cannot be emptied is told, and costs nobody else anything.
#[test]
fn a_working_folder_that_cannot_be_emptied_is_told() {
    let Ok(sandbox) = Sandbox::without(&settings(), &["namespaces", "landlock", "own user"]) else { return };
    let gone = run(&sandbox, "import os, shutil\nshutil.rmtree(os.getcwd())");
    assert_eq!(gone.exit, Exit::Exited(0), "{}", gone.stderr);
    // It is heard of before the next job ends.
    assert_eq!(print(&sandbox, "import os; print(os.listdir('.'))"), "[]");
    let told = sandbox.take_warnings();
    assert!(matches!(&told[..], [one] if one.contains("cannot be emptied (FileNotFoundError")), "{told:?}");
    assert!(sandbox.take_warnings().is_empty());
}

/// Three that died while they waited are no reason to give a job up.
#[test]
fn a_harness_that_died_idle_is_no_attempt() {
    let Ok(sandbox) = Sandbox::new(&settings()) else { return };
    let server = sandbox.start().unwrap();
    sandbox.lock_idle().push(server);
    sandbox.lock_idle().iter_mut().for_each(Server::kill);
    assert_eq!(print(&sandbox, "print(1)"), "1");
    assert_eq!(print(&sandbox, "print(1)"), "1");
}

/// Root's code is not root, or that is said.
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
fn much_output_is_cut() {
    let Some(sandbox) = sandbox() else { return };
    let execution = run(sandbox, "import sys\nprint('x' * 5_000_000)\nprint('é' * 100, file=sys.stderr)");
    assert_eq!((execution.stdout.len(), execution.truncated), (10_000, 4_990_001));
    assert_eq!((execution.stderr.len(), execution.exit), (201, Exit::Exited(0)));
    let endless = "while True: print('y' * 1000)";
    let execution = run_for(sandbox, endless, Duration::from_secs(1));
    assert_eq!((execution.stdout.len(), execution.exit), (10_000, Exit::TimedOut));
    assert!(execution.truncated > 0);
}

#[test]
fn nothing_is_left_behind() {
    let Some(sandbox) = sandbox() else { return };
    if !may_have_children(sandbox) || !Path::new("/proc/self/cmdline").exists() {
        return;
    }
    let marker = format!("1000{:07}", std::process::id());
    let daemon = format!(
        "
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp('sleep', ['sleep', '{marker}'])
    os._exit(0)
os.wait()
print('left')
"
    );
    let execution = run(sandbox, &daemon);
    assert_eq!(
        (execution.stdout.as_str(), execution.exit),
        ("left\n", Exit::Exited(0)),
        "{}",
        execution.stderr
    );
    let is_there = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines.any(|line| line.windows(marker.len()).any(|part| part == marker.as_bytes()))
    };
    let start = Instant::now();
    while is_there() {
        assert!(start.elapsed() < Duration::from_secs(60), "the daemon still runs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_it_writes_is_not_taken_for_the_harness() {
    let Some(sandbox) = sandbox() else { return };
    let forges = r#"
import os
frame = b'x' + (56).to_bytes(4, 'little') + b'{"ending": {"exit": 0}, "failure": null, "cut": [0, 0, 0]}'
for descriptor in range(64):
    for text in (frame, b'R', b'E{"exit": 0}', b'F["files", "none"]'):
        try:
            os.write(descriptor, text)
        except OSError:
            pass
os._exit(9)
"#;
    let execution = run(sandbox, forges);
    assert_eq!(execution.exit, Exit::Exited(9));
    assert!(execution.stdout.contains("ending"));
    assert_eq!(print(sandbox, "print(1)"), "1");
}

#[test]
fn nothing_of_the_run_is_passed_on() {
    let Some(sandbox) = sandbox() else { return };
    let names = print(sandbox, "import os; print(*sorted(os.environ))");
    assert_eq!(
        names,
        "HOME LANG MKL_NUM_THREADS OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PYTHONDONTWRITEBYTECODE \
         PYTHONHASHSEED TMPDIR"
    );
    let look = "
try:
    for pair in open('/proc/self/environ').read().split('\\0'):
        print(pair.partition('=')[0])
except OSError:
    pass
";
    let passed = ["", "PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "PYTHONUTF8", "LC_CTYPE"];
    for name in print(sandbox, look).lines() {
        assert!(passed.contains(&name), "{name}");
    }
    let count = "
import os
def is_open(descriptor):
    try:
        return bool(os.fstat(descriptor))
    except OSError:
        return False
print(sum(map(is_open, range(4096))))
";
    // Its own three, what it reads its job from, and what tests report to.
    assert_eq!(print(sandbox, count), "5");
}

#[test]
fn one_job_knows_nothing_of_another() {
    let Ok(sandbox) = Sandbox::new(&settings()) else { return };
    let leaves = "
import builtins, os, json, tempfile
builtins.leaked = 1
json.leaked = 1
os.environ['LEAKED'] = '1'
open('leaked', 'w').write('x')
os.makedirs('deep/er')
print(os.path.exists('leaked'))
";
    assert_eq!(print(&sandbox, leaves), "True");
    let looks = "
import builtins, gc, json, os
print(hasattr(builtins, 'leaked'), hasattr(json, 'leaked'), 'LEAKED' in os.environ, os.listdir('.'))
";
    assert_eq!(print(&sandbox, looks), "False False False []");
    assert_eq!(sandbox.lock_idle().len(), 1);
    // The same in every process: sets have one order.
    let order = "print({'a', 'b', 'c', 'd', 'e', 'f', 'g'})";
    let first = print(&sandbox, order);
    sandbox.lock_idle().clear();
    assert_eq!(print(&sandbox, order), first);
}

/// What passes through the harness is not to be found in the memory of a later job, which is a copy of its
/// own.
#[test]
fn the_harness_forgets() {
    let Ok(sandbox) = Sandbox::new(&settings()) else { return };
    let marker = format!("begins{}ends", std::process::id());
    let source = format!("print(input()[::-1])\nx = '{marker}'\nimport sys; print(x, x, file=sys.stderr)");
    let stdin = marker.repeat(20).chars().rev().collect::<String>();
    let code = Code { source, stdin, files: BTreeMap::from([("x".to_owned(), marker.clone())]) };
    let execution = sandbox.run(&code).unwrap();
    assert_eq!(execution.stdout.trim_end(), marker.repeat(20));
    let late = Some(serde_json::json!([[format!("assert f() == '{marker}'")]]));
    let split = Job {
        mode: Mode::Split,
        timeout: LONG,
        setup: "",
        source: "",
        stdin: "",
        files: None,
        late,
        max_report: 1 << 20,
    };
    let report = sandbox.execute(&split).unwrap().report;
    assert!(String::from_utf8(report).unwrap().contains(&marker));
    let search = format!(
        "
found = places = 0
try:
    import ctypes
    with open('/proc/self/maps') as maps:
        for line in maps:
            place, rights = line.split()[:2]
            if rights[:2] != 'rw':
                continue
            start, end = (int(part, 16) for part in place.split('-'))
            text = ctypes.string_at(start, end - start)
            places += 1
            at = text.find(b'begins')
            while at >= 0:
                found += text[at + 6:at + 6 + {}] == b'{}'
                at = text.find(b'begins', at + 1)
except (ImportError, OSError):
    pass
print(found, places > 0)
",
        marker.len() - 6,
        &marker[6..]
    );
    match print(&sandbox, &search).as_str() {
        "0 False" => println!("skipped: a process may not read its own memory here"),
        found => assert_eq!(found, "0 True"),
    }
    assert_eq!(sandbox.lock_idle().len(), 1);
}

#[test]
fn a_dead_harness_is_replaced() {
    let Ok(sandbox) = Sandbox::new(&settings()) else { return };
    let kill = |sandbox: &Sandbox| sandbox.lock_idle().iter_mut().for_each(Server::kill);
    kill(&sandbox);
    assert_eq!(print(&sandbox, "print(1)"), "1");
    assert_eq!(sandbox.lock_idle().len(), 1);
}

#[test]
fn many_threads_share_it() {
    let Some(sandbox) = sandbox() else { return };
    std::thread::scope(|scope| {
        for number in 0..6 {
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(
                        print(sandbox, &format!("print({number} ** 2)")),
                        (number * number).to_string()
                    );
                }
            });
        }
    });
}

/// Kernels that lack something, as far as this one can be made to look like them.
#[test]
fn what_is_missing_is_said() {
    let Some(whole) = sandbox() else { return };
    for without in [
        &["root"][..],
        &["namespaces"],
        &["landlock"],
        &["seccomp"],
        &["namespaces", "landlock"],
        &["namespaces", "seccomp"],
        &["namespaces", "landlock", "seccomp"],
    ] {
        let sandbox = Sandbox::without(&settings(), without).unwrap();
        let line = sandbox.protection().to_string();
        println!("without {}: {line}", without.join(", "));
        let lacks = |layer: &str| !sandbox.protection().has(layer);
        let leaves_out = |part: &str| without.contains(&part);
        if leaves_out("namespaces") && leaves_out("landlock") {
            assert!(lacks("files"), "{line}");
        }
        if leaves_out("namespaces") && leaves_out("seccomp") {
            assert!(lacks("network") && lacks("processes"), "{line}");
        }
        assert_eq!(lacks("system calls"), leaves_out("seccomp") || !whole.protection().has("system calls"));
        assert_eq!(line.contains("NOT in force"), !sandbox.protection().is_whole());
        assert_eq!(print(&sandbox, "print(1)"), "1");
        assert_eq!(run_for(&sandbox, "while True: pass", Duration::from_millis(300)).exit, Exit::TimedOut);
        if sandbox.protection().has("network") {
            let connect = "import socket; socket.create_connection(('127.0.0.1', 9), 3)";
            let execution = run(&sandbox, connect);
            assert!(!execution.stderr.contains("refused"), "{without:?} {}", execution.stderr);
        }
        if sandbox.protection().has("files") {
            assert_eq!(run(&sandbox, "open('/etc/shadow')").exit, Exit::Exited(1), "{without:?}");
            assert_eq!(
                run(&sandbox, "open('/usr/tamis-was-here', 'w')").exit,
                Exit::Exited(1),
                "{without:?}"
            );
        }
        if sandbox.protection().has("processes") {
            let kill = format!("import os; os.kill({}, 0)", std::process::id());
            assert_eq!(run(&sandbox, &kill).exit, Exit::Exited(1), "{without:?}");
        }
        if !sandbox.protection().is_whole() {
            let strict = SandboxSettings { required: Required::All, ..settings() };
            let error = Sandbox::without(&strict, without).unwrap_err().to_string();
            let expected = "`required: all` asks for more protection than there is here: sandbox (Python ";
            assert!(error.starts_with(expected) && error.contains("; NOT in force: "), "{error}");
        }
        let strict = SandboxSettings { required: Required::NoNetwork, ..settings() };
        assert_eq!(Sandbox::without(&strict, without).is_err(), lacks("network"));
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

#[test]
fn bad_input_is_told() {
    let with_python = |python: &str| {
        let settings = SandboxSettings { python: tamis_core::setting::Program(python.into()), ..settings() };
        Sandbox::new(&settings).unwrap_err().to_string()
    };
    insta::assert_snapshot!(with_python("no-such-python"), @"the sandbox cannot use `no-such-python`: No such file or directory (os error 2)");
    insta::assert_snapshot!(with_python("false"), @"the sandbox cannot use `false`: it is no working Python interpreter (exit status: 1): ");
    let Some(sandbox) = sandbox() else { return };
    for name in ["../x", "/etc/x", "", "a/../../b", "x/"] {
        let files = BTreeMap::from([(name.to_owned(), String::new())]);
        let error = sandbox.run(&Code { files, ..Code::new("") }).unwrap_err();
        assert_eq!(error, SandboxError::File { name: name.to_owned() });
    }
}
