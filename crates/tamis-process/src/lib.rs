//! Beside the kernel: child processes that never outlive tamis. A [`ProcessGroup`] is a process with
//! everything it has started. It ends when the value is dropped, and a guard ends it if tamis is killed. A
//! [`LineChild`] is such a process that tamis talks to over its pipes. Rewards, environments, loggers and the
//! launcher of a cluster use lines; the sandbox uses frames, because a program's output may contain any byte.
//! [`LineChild::await_answer`] waits for one answer, within a time limit. [`Restarts`] counts how often in a
//! row a child is started again. [`run`] runs a command to its end, within a time limit.

mod answer;
mod folder;
mod group;
#[cfg(unix)]
mod guard;
mod interpreter;
mod line_child;
mod lines;
mod marked;
mod restarts;
mod run;
mod tail;

pub use answer::{AnswerWait, PATIENCE, Silence};
pub use folder::GuardedFolder;
pub use group::{ProcessGroup, Reach};
pub use interpreter::{DEFAULT_INTERPRETER, interpreter, with_package};
pub use line_child::{ChildHandle, ChildSettings, Copy, Errors, LineChild, command};
pub use lines::{LONGEST_LINE, Line, Lines};
pub use marked::kill_marked;
pub use restarts::{Restarts, RestartsSpent};
pub use run::{ProgramError, Ran, ask, run};
pub use tail::{ending, last_lines};
