//! Hostile programs. If the kernel lacks a layer, the tests of that layer are skipped with a message.

use std::net::TcpListener;
use std::sync::LazyLock;
use std::time::Instant;

use tamis_core::setting::TimeSpan;

use super::*;

mod harness;
mod protection;

/// Long enough for a busy machine.
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

/// `None` if there is no Python.
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

#[test]
fn a_working_folder_that_cannot_be_emptied_is_told() {
    let Ok(sandbox) = Sandbox::without(&settings(), &["namespaces", "landlock", "own user"]) else { return };
    let gone = run(&sandbox, "import os, shutil\nshutil.rmtree(os.getcwd())");
    assert_eq!(gone.exit, Exit::Exited(0), "{}", gone.stderr);
    // The failure is noticed before the next job ends.
    assert_eq!(print(&sandbox, "import os; print(os.listdir('.'))"), "[]");
    let told = sandbox.take_warnings();
    assert!(matches!(&told[..], [one] if one.contains("cannot be emptied (FileNotFoundError")), "{told:?}");
    assert!(sandbox.take_warnings().is_empty());
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

/// Kernels without some feature, as far as this kernel can imitate them.
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
            let expected = "`required: all` asks for more protection than this machine has: sandbox (Python ";
            assert!(error.starts_with(expected) && error.contains("; NOT in force: "), "{error}");
        }
        let strict = SandboxSettings { required: Required::NoNetwork, ..settings() };
        assert_eq!(Sandbox::without(&strict, without).is_err(), lacks("network"));
    }
}

#[test]
fn bad_input_is_told() {
    let with_python = |python: &str| {
        let settings = SandboxSettings { python: tamis_core::setting::Program(python.into()), ..settings() };
        Sandbox::new(&settings).unwrap_err().to_string()
    };
    insta::assert_snapshot!(with_python("no-such-python"), @"the sandbox cannot use `no-such-python`: No such file or directory (os error 2)");
    insta::assert_snapshot!(with_python("false"), @"the sandbox cannot use `false`: it is not a working Python interpreter (exit status: 1): ");
    let Some(sandbox) = sandbox() else { return };
    for name in ["../x", "/etc/x", "", "a/../../b", "x/"] {
        let files = BTreeMap::from([(name.to_owned(), String::new())]);
        let error = sandbox.run(&Code { files, ..Code::new("") }).unwrap_err();
        let expected =
            format!("the file `{name}` must be in the working folder: a relative path without `..`");
        assert_eq!(error.to_string(), expected);
    }
}
