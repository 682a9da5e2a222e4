//! Messages about the places that metrics are written to.

use insta::assert_snapshot;
use tamis_config::{LoggerKind, WandbMode};

use crate::{load, show_errors};

#[test]
fn a_logger_is_a_name_or_a_section() {
    let text = "\
run:
  loggers:
    - console
    - {kind: wandb, project: sieve, mode: offline}
    - kind: prometheus
model: {path: m}
data: {task: arithmetic}
train: {total_steps: 1}";
    let loggers = load(text, &[]).config.run.loggers;
    let [LoggerKind::Console(_), LoggerKind::Wandb(wandb), LoggerKind::Prometheus(prometheus)] = &loggers[..]
    else {
        panic!("{loggers:?}")
    };
    assert_eq!((wandb.project.as_deref(), wandb.mode), (Some("sieve"), WandbMode::Offline));
    assert_eq!(prometheus.address, "127.0.0.1:9464");
    let json = serde_json::to_value(&load(text, &[]).config).expect("a value");
    let shown = json["run"]["loggers"].as_array().expect("a list");
    // With every setting at its default, the name is enough.
    assert_eq!((&shown[0], &shown[2]), (&"console".into(), &"prometheus".into()));
    assert_eq!((&shown[1]["kind"], &shown[1]["num_samples"]), (&"wandb".into(), &0.into()));
    let named = load(text, &["run.loggers=[jsonl, {kind: mlflow, experiment: sieve}]"]).config.run.loggers;
    assert!(matches!(&named[..], [LoggerKind::Jsonl(_), LoggerKind::Mlflow(_)]), "{named:?}");
}

#[test]
fn what_is_no_logger() {
    assert_snapshot!([
        show_errors("run: {loggers: [console, wandbb]}", &[]),
        show_errors("run: {loggers: [{kind: wandb, projekt: a}]}", &[]),
        show_errors("run: {loggers: [jsonl, [tensorboard]]}", &[]),
        show_errors("run: {loggers: [jsonl, {kind: jsonl}]}", &[]),
        show_errors("run: {loggers: [{kind: prometheus, address: localhost}]}", &[]),
        show_errors("run: {loggers: [{kind: otlp, endpoint: https://collector:4318}]}", &[]),
        show_errors("run: {loggers: [{kind: mlflow, tracking_uri: 'https://me:s3cret@mlflow:5000/a'}]}", &[]),
    ].join("\n"), @r"
    error: `run.loggers[1]` cannot be `wandbb`: it is one of console, jsonl, tensorboard, wandb, mlflow, trackio, prometheus, otlp
      at run.yaml:1: run: {loggers: [console, «wandbb»]}
      hint: did you mean `wandb`?
    error: unknown key `run.loggers[0].projekt`
      at run.yaml:1: run: {loggers: [{kind: wandb, «projekt»: a}]}
      hint: did you mean `run.loggers[0].project`?
    error: `run.loggers[1]` must be one of console, jsonl, tensorboard, wandb, mlflow, trackio, prometheus, otlp, alone or as the `kind` of a section, not a list of 1
      at run.yaml:1: run: {loggers: [jsonl, «[tensorboard]»]} [explain it]
    error: `run.loggers` names `jsonl` twice
      at run.yaml:1: run: {loggers: [jsonl, «{kind: jsonl}»]}
      hint: remove one of them
    error: `run.loggers[0].address` is not an address: `localhost`
      at run.yaml:1: run: {loggers: [{kind: prometheus, address: «localhost»}]}
      hint: write `HOST:PORT`, such as `127.0.0.1:9464`, or `0.0.0.0:9464` for other machines
    error: `run.loggers[0].endpoint` is not an HTTP address: `https://collector:4318`
      at run.yaml:1: run: {loggers: [{kind: otlp, endpoint: «https://collector:4318»}]}
      hint: write `http://HOST:PORT/v1/traces`; for TLS, let a collector on this machine forward the spans
    error: `run.loggers[0].tracking_uri` contains a user name or a password, which would end up in the files of the run
      at run.yaml:1: run: {loggers: [{kind: mlflow, tracking_uri: «'https://me:s3cret@mlflow:5000/a'»}]}
      hint: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment, or the whole address as MLFLOW_TRACKING_URI
    ");
    let plain = "run: {loggers: [{kind: mlflow, tracking_uri: 'https://mlflow:5000/a@b'}]}";
    assert!(!show_errors(plain, &[]).contains("password"));
}
