//! Functions of one file and of the same settings share processes.

use super::*;

const COUNTED: &str = r#"
import os
calls, imports = [], os.path.join(os.path.dirname(__file__), "imports")
open(imports, "a").write("x")
print("imported")
def f(completion):
    print("f has", completion)
    if completion == "2": os._exit(9)
    calls.append("f")
    return len(calls)
def g(completion, by=1):
    print("g has", completion)
    calls.append("g")
    return len(calls) * by
"#;

/// Two functions of a file that ends its process at the completion `2` of `f`, with their messages and
/// what they print.
fn two_functions() -> (tempfile::TempDir, Arc<Heard>, [CommandReward; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("user.py");
    std::fs::write(&path, COUNTED).unwrap();
    let heard = Arc::new(Heard::default());
    let listener: Arc<dyn Listener> = heard.clone();
    let place = |name: &str| Arc::new(Printed::to(None, name, &listener));
    let named = |function: &str, kwargs: Value| PythonSettings {
        path: path.clone(),
        function: function.to_owned(),
        kwargs: kwargs.as_object().cloned().unwrap_or_default(),
        ..PythonSettings::default()
    };
    let (f, g) = (named("f", Value::Null), named("g", json!({"by": 100})));
    let program = folder.path().join(FILE);
    std::fs::write(&program, PROGRAM).unwrap();
    assert_eq!(f.command_line(&program), g.command_line(&program));
    let config = CommandConfig { max_restarts: 1, ..f.pool.config(f.command_line(&program), 1, None) };
    let pool = Arc::new(Pool::start(config, [place("f")]).unwrap());
    let called = |settings: &PythonSettings, name: &str| {
        settings.call_in(Arc::clone(&pool), name, Arc::clone(&listener), || place(name))
    };
    let functions = [called(&f, "f"), called(&g, "g")];
    (folder, heard, functions)
}

#[test]
fn functions_of_one_file_share_its_process() {
    if !has_python() {
        return;
    }
    let (folder, heard, [f, g]) = two_functions();
    assert!(matches!(f.introduce(&rows()), Ok(Introduced::Function(_))));
    assert_eq!(introduce(&g, &rows()).signature, "g(completion, by=1)");
    let scores = |command: &CommandReward, num: usize| show(&outcomes(command, num));
    assert_eq!(scores(&f, 1), "acc=1 score=1");
    assert_eq!(scores(&g, 1), "acc=200 score=200", "its own arguments, and the globals of the file");
    assert_eq!(scores(&f, 1), "acc=3 score=3");
    let imports = || std::fs::read_to_string(folder.path().join("imports")).unwrap();
    assert_eq!(imports(), "x");
    drop((f, g));
    let limit = Instant::now() + Duration::from_secs(60);
    while heard.text().lines().count() < 4 && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(heard.text(), "f: imported\nf: f has 0\ng: g has 0\nf: f has 0");
}

#[test]
fn a_lost_process_is_started_again_for_every_function_of_its_file() {
    if !has_python() {
        return;
    }
    let (folder, heard, [f, g]) = two_functions();
    let scores = |command: &CommandReward, num: usize| show(&outcomes(command, num));
    let of_f = scores(&f, 3);
    let expected = "acc=1 score=1; acc=2 score=2; the process ended (exit status: 9) before it answered";
    assert!(of_f.starts_with(expected) && of_f.ends_with("f has 2"), "{of_f}");
    assert_eq!(scores(&g, 1), "acc=100 score=100", "in a fresh process, whose globals are fresh too");
    // A restart is counted for the function that ended the process: `g` goes on when `f` is broken.
    let of_f = scores(&f, 1);
    assert!(of_f.starts_with("its processes were restarted 1 time in a row, which is the limit"), "{of_f}");
    assert_eq!(scores(&g, 1), "acc=200 score=200");
    assert_eq!(lock(&g.caller.health).restarts.in_a_row(), 0);
    let restarts = heard.text();
    let restarts: Vec<&str> =
        restarts.lines().filter(|line| line.contains("is restarted, restart")).collect();
    assert_eq!(restarts.len(), 1, "{restarts:?}");
    assert!(
        restarts[0].starts_with("warning: reward `f`: its process is restarted, restart 1"),
        "{restarts:?}"
    );
    assert_eq!(std::fs::read_to_string(folder.path().join("imports")).unwrap().len(), 3);
}

#[test]
fn a_file_of_other_settings_has_its_own_processes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.py");
    let pools = SharedPools::default();
    let open = |file: &std::path::Path, config: CommandConfig| {
        pools.open(file, config, |config| Pool::start(config, None)).unwrap()
    };
    let base = config(&["cat"]);
    let first = open(&file, base.clone());
    let around = folder.path().join("../").join(folder.path().file_name().unwrap()).join("a.py");
    assert!(Arc::ptr_eq(&first, &open(&around, base.clone())), "one file, whatever the path");
    let others = [
        (folder.path().join("b.py"), base.clone()),
        (file.clone(), CommandConfig { timeout: Duration::from_secs(9), ..base.clone() }),
        (file.clone(), CommandConfig { num_processes: 2, ..base.clone() }),
        (file.clone(), CommandConfig { argv: vec!["cat".to_owned(), "-u".to_owned()], ..base.clone() }),
    ];
    for (file, config) in others {
        assert!(!Arc::ptr_eq(&first, &open(&file, config)));
    }
    let place = || Arc::new(Printed::to(None, "f", &(Arc::new(Nobody) as Arc<dyn Listener>)));
    assert_eq!(
        (first.register("f", place), first.register("g", place), first.register("f", place)),
        (0, 1, 0)
    );
    assert_eq!(
        pools.announcement().unwrap(),
        "starting 6 reward processes: a.py (2 functions), b.py, a.py, a.py, a.py"
    );
}
