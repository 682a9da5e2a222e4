//! What the learner, the servers and the samplers of a run or an evaluation need to start.

use std::path::Path;

use tamis_config::Config;
use tamis_run::durable::Disk;
use tamis_run::log::progress::Console;

use crate::interrupt::Interrupt;
use crate::launcher::Launcher;
use crate::prompts::codec::Codec;

#[derive(Clone, Copy)]
pub(crate) struct Startup<'a> {
    pub(crate) config: &'a Config,
    pub(crate) codec: &'a Codec,
    pub(crate) launcher: &'a dyn Launcher,
    pub(crate) disk: &'a Disk,
    /// The run directory, or the temporary folder of an evaluation.
    pub(crate) folder: &'a Path,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) ui: &'a Console,
}
