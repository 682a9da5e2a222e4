use std::sync::Arc;

use tamis_core::group::{FinishReason as SampleEnd, PolicyVersion, PromptId};
use tamis_core::schedule::ScheduleSettings;
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_env::reward::exact::Exact;
use tamis_env::reward::{NamedReward, Rewards};

use super::*;
use crate::generator::Sample;
use crate::source::Drawn;

/// Prompts without end, each the number of its row.
struct Counting(u64);

impl PromptSource for Counting {
    fn draw(&mut self, n: usize) -> Drawn {
        let prompt = |row: u64| PreparedPrompt {
            prompt: Arc::new(Prompt {
                id: PromptId(row),
                content: PromptContent::Text(row.to_string()),
                ground_truth: Some("x".to_owned()),
                data_source: String::new(),
                columns: serde_json::Map::new(),
            }),
            token_ids: Arc::from([1]),
            text: "?".into(),
            continued: "".into(),
        };
        let first = self.0;
        self.0 += n as u64;
        Drawn { prompts: (first..self.0).map(prompt).collect(), epoch: 0, exhausted: false }
    }

    fn next_epoch(&mut self) {}
}

/// Finishes requests with this text, under the tickets that a function makes of theirs.
struct Answers {
    text: &'static str,
    ticket: fn(Ticket) -> Ticket,
    requests: Vec<GroupRequest>,
}

impl GroupGenerator for Answers {
    fn submit(&mut self, request: GroupRequest, _sampling: &Sampling) -> Result<(), GroupGeneratorError> {
        self.requests.push(request);
        Ok(())
    }

    fn poll(&mut self) -> Result<Vec<Outcome>, GroupGeneratorError> {
        let sample = || Sample {
            token_ids: vec![1],
            logprobs: vec![-1.0],
            entropy: None,
            text: self.text.to_owned(),
            finish_reason: SampleEnd::Stop,
            versions: Vec::new(),
        };
        let finished = |request: &GroupRequest| Outcome::Finished {
            ticket: (self.ticket)(request.ticket),
            samples: request.keys.iter().map(|_| sample()).collect(),
        };
        let outcomes = self.requests.iter().map(finished).collect();
        self.requests.clear();
        Ok(outcomes)
    }

    fn abort(&mut self, _ticket: Ticket) {}

    fn version(&self) -> PolicyVersion {
        PolicyVersion(0)
    }

    fn take_num_generated_tokens(&mut self) -> u64 {
        0
    }
}

impl Backend for Answers {}

struct Silent;

impl Observer for Silent {
    fn round_begins(&mut self, _step: u64, _round: u64, _num_prompts: usize) {}
    fn groups_finished(&mut self, _finished: usize, _num_tokens: u64) {}
    fn scored(&mut self, _scored: &[Scored]) {}
    fn round_complete(&mut self, _report: &RoundReport) {}
    fn epoch_begins(&mut self, _epoch: u64) {}
    fn warn(&mut self, _message: &str) {}
}

/// One step of two prompts with two completions each, every one `text`.
fn collected(text: &'static str, ticket: fn(Ticket) -> Ticket) -> (Shell, Result<Collected, ShellError>) {
    let settings = ShellSettings {
        seed: 1,
        group_size: 2,
        sampling: Sampling {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            max_response_length: 1,
            stop: Vec::new(),
        },
        is_metric_unproven: false,
    };
    let rounds = ScheduleSettings {
        filter: None,
        refill: false,
        total_steps: Some(1),
        metric: Metric::SeqReward,
        ..ScheduleSettings::verl(2, 2, 2, 1)
    };
    let mut shell = Shell::new(settings, Scheduler::rounds(rounds).expect("settings"));
    let function = NamedReward { name: "exact".to_owned(), weight: 1.0, function: Box::new(Exact) };
    let mut scorer = Scorer::new(Rewards::new(vec![function]).expect("a function"));
    let collected = shell.collect(Dependencies {
        source: &mut Counting(0),
        backend: &mut Answers { text, ticket, requests: Vec::new() },
        scorer: &mut scorer,
        observer: &mut Silent,
    });
    (shell, collected)
}

/// An outcome with the number of a group is taken for that group's only where it is a rollout's, and only once.
#[test]
fn an_outcome_that_no_group_waits_for_is_refused() {
    let (_, whole) = collected("x", |ticket| ticket);
    assert_eq!(whole.expect("collects").trained.len(), 2);
    let told = |ticket| collected("x", ticket).1.expect_err("refused").to_string();
    for (ticket, shown) in [
        (
            (|ticket| Ticket { purpose: TicketPurpose::Validation, ..ticket }) as fn(Ticket) -> Ticket,
            "validation prompt 0",
        ),
        (|ticket| Ticket { purpose: TicketPurpose::Greedy, ..ticket }, "greedy completion 0"),
        (|ticket| Ticket { index: ticket.index + 7, ..ticket }, "group 7"),
        (|ticket| Ticket { index: 0, ..ticket }, "group 0"),
    ] {
        assert_eq!(
            told(ticket),
            format!("the generator gave an outcome for {shown}, which nobody waits for")
        );
    }
}

/// What an attempt held when it ended with an error is there to look at.
#[test]
fn the_groups_of_an_unfinished_attempt_are_there() {
    let (shell, refused) = collected("x", |ticket| Ticket { index: 0, ..ticket });
    assert!(refused.is_err());
    let unfinished = shell.unfinished(1);
    assert_eq!(unfinished.len(), 2);
    assert!(unfinished.iter().all(|record| record.fate == Fate::Aborted));
    assert_eq!(unfinished[0].group.trajectories.len(), 2, "it was generated before the error");
    assert!(shell.unfinished(2).is_empty());
}
