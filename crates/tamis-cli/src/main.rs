//! The command `tamis`.
//!
//! Parses the command line, calls the libraries, prints errors. Results go to stdout, progress and logs to
//! stderr.

mod arguments;
mod command;
mod failure;
mod help;
mod pages;

use std::process::ExitCode;

use clap::FromArgMatches as _;

use arguments::{Arguments, CliCommand, read_arguments};

fn main() -> ExitCode {
    leave_caught_panics_unprinted();
    let read = help::command().try_get_matches_from(read_arguments());
    let arguments = match read.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are no errors; clap knows which stream and code they want.
            let code = if error.use_stderr() { failure::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let result = match &arguments.command {
        CliCommand::Train(train) => command::train::run(train),
        CliCommand::Sweep(sweep) => command::sweep::run(sweep),
        CliCommand::Eval(eval) => command::eval::run(eval),
        CliCommand::Serve(serve) => command::serve::run(serve),
        CliCommand::Chat(chat) => command::chat::run(chat),
        CliCommand::Learner(learner) => command::learner::run(learner),
        CliCommand::Filter(filter) => command::filter::run(filter),
        CliCommand::Rollouts(rollouts) => command::rollouts::run(rollouts),
        CliCommand::Monitor(monitor) => command::monitor::run(monitor),
        CliCommand::Report(report) => command::report::run(report),
        CliCommand::Advise(advise) => command::advise::run(advise),
        CliCommand::Simulate(simulate) => command::simulate::run(simulate),
        CliCommand::Export(export) => command::export::run(export),
        CliCommand::Explain { name } => command::explain::run(name.as_deref()),
        CliCommand::Doctor(doctor) => command::doctor::run(doctor),
        CliCommand::Docs { page } => command::docs::docs(page.as_deref()),
        CliCommand::Init { folder } => command::docs::init(folder),
        CliCommand::Completions { shell } => command::completions::run(*shell),
        CliCommand::Config(config) => command::config::run(config),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.code())
        }
    }
}

/// A panic that becomes an error of a file is printed as that error, once.
fn leave_caught_panics_unprinted() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !tamis_core::caught::is_catching() {
            print(info);
        }
    }));
}
