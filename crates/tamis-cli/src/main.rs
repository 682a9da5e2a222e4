//! The command `tamis`.
//!
//! Parses the command line, hands over to the libraries, renders what went wrong. Results go to stdout,
//! progress and logs to stderr.

mod arguments;
mod command;
mod failure;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command, typed};

fn main() -> ExitCode {
    leave_caught_panics_unprinted();
    let arguments = match Arguments::try_parse_from(typed()) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are no errors; clap knows which stream and code they want.
            let code = if error.use_stderr() { failure::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let result = match &arguments.command {
        Command::Train(train) => command::train::run(train),
        Command::Eval(eval) => command::eval::run(eval),
        Command::Serve(serve) => command::serve::run(serve),
        Command::Filter(filter) => command::filter::run(filter),
        Command::Rollouts(rollouts) => command::rollouts::run(rollouts),
        Command::Export(export) => command::export::run(export),
        Command::Explain { name } => command::explain::run(name.as_deref()),
        Command::Config(config) => command::config::run(config),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.code())
        }
    }
}

/// A panic that becomes an error of a file is told as that error, once.
fn leave_caught_panics_unprinted() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !tamis_core::caught::is_catching() {
            print(info);
        }
    }));
}
