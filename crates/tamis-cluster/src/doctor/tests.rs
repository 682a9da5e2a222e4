//! Which ways of running are possible, given the findings.

use std::collections::BTreeMap;

use tamis_rollout::launch::LaunchError;

use super::python::Torch;
use super::*;
use crate::plan::machines::Gpu;

fn python(packages: &[&str], devices: usize) -> Interpreter {
    let torch = packages.contains(&"torch").then(|| Torch {
        cuda: Some("13.2".to_owned()),
        devices: vec!["H100".to_owned(); devices],
        nccl: Some("2.30.7".to_owned()),
        error: None,
    });
    let packages: BTreeMap<String, String> =
        packages.iter().map(|&name| (name.to_owned(), "1".to_owned())).collect();
    Interpreter { executable: "python3".to_owned(), version: "3.12.0".to_owned(), packages, torch }
}

fn machine(gpus: usize) -> Machine {
    let gpu = |id: usize| Gpu { id: id.to_string(), name: "H100".to_owned(), memory: 80 << 30, used: 0 };
    Machine { gpus: (0..gpus).map(gpu).collect(), ..Machine::default() }
}

fn missing(here: &Machine, python: Option<&Interpreter>, name: &str) -> String {
    let ways = ways(here, python, false, false);
    ways.iter().find(|way| way.name == name).expect("such a way").missing.join("; ")
}

#[test]
fn each_way_tells_what_it_lacks() {
    let (cpu, gpu) = ("learning in PyTorch on the CPU", "learning in PyTorch on a GPU");
    assert_eq!(missing(&machine(0), None, "the native engine"), "");
    assert_eq!(missing(&machine(0), None, cpu), "a Python interpreter (`learner.python`)");
    assert_eq!(missing(&machine(0), Some(&python(&["torch"], 0)), cpu), "transformers; safetensors");
    let whole = python(&LEARNER, 0);
    assert_eq!(missing(&machine(0), Some(&whole), cpu), "");
    assert_eq!(missing(&machine(0), Some(&whole), gpu), "an NVIDIA GPU with its driver");
    // PyTorch cannot use the GPUs.
    assert!(missing(&machine(2), Some(&whole), gpu).starts_with("a PyTorch that can use the GPUs"));
    let sees = python(&LEARNER, 2);
    assert_eq!(missing(&machine(2), Some(&sees), gpu), "");
    assert_eq!(missing(&machine(2), Some(&sees), "several GPUs of this machine"), "");
    assert_eq!(missing(&machine(1), Some(&sees), "several GPUs of this machine"), "2 GPUs");
    assert_eq!(missing(&machine(2), Some(&sees), "a Ray cluster"), "ray");
    assert_eq!(missing(&machine(2), Some(&sees), "continuous batching in the learner"), "flash-attn");
}

#[test]
fn a_report_reads_well() {
    let report = Report {
        sections: vec![Topic::new(
            "this machine",
            vec![
                Finding::good("4 processor cores".to_owned()),
                Finding::bad("shared memory: 64.0 MiB free".to_owned(), "`--ipc=host`"),
                Finding::note("no NVIDIA GPU".to_owned()),
            ],
        )],
        ways: ways(&machine(0), None, false, false).into_iter().take(2).collect(),
        needs: None,
    };
    insta::assert_snapshot!(report, @r"
    this machine
      ok  4 processor cores
      !!  shared memory: 64.0 MiB free
          hint: `--ipc=host`
      --  no NVIDIA GPU

    what can run here
      ok  the native engine               learner.backend: native
      --  learning in PyTorch on the CPU  missing: a Python interpreter (`learner.python`)
    ");
    assert!(!report.lacks());
    let lacking = Topic::new("what this configuration needs", vec![Finding::bad("x".to_owned(), "y")]);
    assert!(Report { needs: Some(lacking), ..report }.lacks());
}

/// A missing Ray package and a missing cluster get different hints.
#[test]
fn what_a_launcher_advises_is_the_hint() {
    let (message, hint) =
        ("/bin/python3 has no Ray".to_owned(), "/bin/python3 -m pip install ray".to_owned());
    let without =
        needs::no_cluster(&Halt::Failed(LaunchError::Refused { message, hint: Some(hint.clone()) }));
    assert_eq!((without.text.as_str(), without.hint), ("Ray: /bin/python3 has no Ray", Some(hint)));
    let silent = LaunchError::Refused { message: "no answer".to_owned(), hint: None };
    let silent = needs::no_cluster(&Halt::Failed(silent));
    assert!(silent.hint.is_some_and(|hint| hint.starts_with("start one (`ray start --head`)")));
}
