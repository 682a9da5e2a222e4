//! Messages of `tamis train` when a reward program breaks down, hangs or gives no number.

use crate::tamis::{Ended, Folder, Replaced as _};
use crate::train_messages::{leaves_no_run, tiny, train};

/// A program that answers every request by a Python expression; `request` is the request.
fn answering(expression: &str) -> String {
    format!(
        "import json, os, sys, time\nfor line in sys.stdin:\n    request = json.loads(line)\n    {expression}\n    sys.stdout.flush()\n"
    )
}

fn with_program(program: &str) -> Ended {
    with_program_restarted(program, 1)
}

fn with_program_restarted(program: &str, max_restarts: usize) -> Ended {
    let folder = Folder::new().with("program.py", program);
    let reward = format!(
        "reward: [{{kind: number}}, {{kind: command, name: judge, argv: [python3, program.py], num_processes: 1, \
         timeout: 300ms, max_restarts: {max_restarts}}}]"
    );
    let ended =
        train(&folder, &tiny(&[("reward: [{kind: number}]", &reward), ("total_steps: 6", "total_steps: 2")]));
    if ended.code == Some(2) {
        // The program's output is kept, like the logs of all started processes.
        let _ = std::fs::remove_file(folder.join("runs/tiny.failed/reward-judge.log"));
        let _ = std::fs::remove_dir(folder.join("runs/tiny.failed"));
        leaves_no_run(&folder);
    }
    if ended.code != Some(0) && folder.join("runs/tiny/config.yaml").is_file() {
        // Whatever happened, the run can be resumed once the program is fixed.
        folder.write("program.py", &answering("print(json.dumps({'id': request['id'], 'score': 0.5}))"));
        folder.tamis(&["train", "--resume", "runs/tiny"]).succeeds();
    }
    ended
}

#[test]
fn rewards_that_break_down() {
    let crash =
        "os._exit(3) if request['step'] == 1 else print(json.dumps({'id': request['id'], 'score': 1.0}))";
    insta::assert_snapshot!(with_program(&answering(crash)).failure(), @r#"
    exit code 1
    error: reward function `judge` cannot continue: its processes were restarted 1 time in a row, which is the limit; the last failure: the process ended (exit status: 3) before it answered
      hint: fix the program, then continue with `tamis train --resume` and the run's directory: nothing that was answered is asked again
    "#);
}

#[test]
fn rewards_that_hang() {
    insta::assert_snapshot!(with_program_restarted(&answering("time.sleep(1000) if request['step'] == 1 else print(json.dumps({'id': request['id'], 'score': 1.0}))"), 0).failure(), @r#"
    exit code 1
    error: reward function `judge` cannot continue: its processes were restarted 0 times in a row, which is the limit; the last failure: no answer within 0.3 s; the process was killed
      hint: fix the program, then continue with `tamis train --resume` and the run's directory: nothing that was answered is asked again
    "#);
}

#[test]
fn rewards_that_keep_waiting_are_told_of() {
    let sleepy = answering("print(json.dumps({'id': request['id'], 'score': 1.0}))")
        .replaced("import json, os, sys, time\n", "import json, os, sys, time\ntime.sleep(7)\n");
    let folder = Folder::new().with("program.py", &sleepy);
    let reward = "reward: [{kind: number}, {kind: command, name: judge, argv: [python3, program.py], \
         num_processes: 1, timeout: 1s, startup_timeout: 5s, max_restarts: 0}]";
    let ended = train(&folder, &tiny(&[("reward: [{kind: number}]", reward)]));
    let from = ended.stderr.find("checking ").unwrap_or_default();
    insta::assert_snapshot!(&ended.stderr[from..], @r"
    checking 64 gold answers with reward `judge`: it is called for about 200 completions
    reward `judge`: no answer yet from `python3 program.py` for 5 s; it times out after 6 s (a fresh process; `startup_timeout` is part of that)
    nothing was trained: the run directory runs/tiny is removed again
    error: reward function `judge` cannot continue: its processes were restarted 0 times in a row, which is the limit; the last failure: no answer within 6 s; the process was killed
    ");
    leaves_no_run(&folder);
}

#[test]
fn rewards_that_give_no_number_leave_the_row_out() {
    let some = "float('inf') if request['id'] % 2 else 0.5";
    for answer in ["float('nan')", "None", some] {
        let program = answering(&format!("print(json.dumps({{'id': request['id'], 'score': {answer}}}))"));
        with_program(&program).succeeds().prints("done: 2 steps");
    }
    // Only infinities once it trains: such a function fails on everything.
    let program = answering(
        "print(json.dumps({'id': request['id'], 'score': float('inf') if request['step'] else 0.5}))",
    );
    let ended = with_program(&program);
    let printed = "error: reward `judge` (reward[1]) failed on every completion of ";
    assert!(ended.code == Some(1) && ended.failure().contains(printed), "{}", ended.shown());
    let only = "reward: [{kind: command, name: judge, argv: [python3, program.py], num_processes: 1}]";
    let folder = Folder::new()
        .with("program.py", &answering("print(json.dumps({'id': request['id'], 'score': None}))"));
    let config = tiny(&[
        ("reward: [{kind: number}]", only),
        ("filter: {kind: variance}", "filter: {kind: variance, metric: judge}"),
    ]);
    let config = config.replaced("  task: arithmetic", "  task: arithmetic\n  check_gold: off");
    let ended = train(&folder, &config).exits(1);
    ended.fails_with("exit code 1\nerror: no completion of 3 rounds in a row had a reward, up to step 1: ");
}
