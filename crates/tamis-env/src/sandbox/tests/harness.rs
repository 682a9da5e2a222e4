//! A program cannot see another program, or the harness that runs both.

use super::*;

/// If three waiting processes died, the job still runs.
#[test]
fn a_harness_that_died_idle_is_no_attempt() {
    let Ok(sandbox) = Sandbox::new(&settings()) else { return };
    let server = sandbox.start().unwrap();
    sandbox.lock_idle().push(server);
    sandbox.lock_idle().iter_mut().for_each(Server::kill);
    assert_eq!(print(&sandbox, "print(1)"), "1");
    assert_eq!(print(&sandbox, "print(1)"), "1");
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
    // Its own three, the pipe for its job, and the pipe for test reports.
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
    // Sets have the same order in every process.
    let order = "print({'a', 'b', 'c', 'd', 'e', 'f', 'g'})";
    let first = print(&sandbox, order);
    sandbox.lock_idle().clear();
    assert_eq!(print(&sandbox, order), first);
}

/// Data that passes through the harness is not in the memory of a later job, which is a copy of the
/// harness's.
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
