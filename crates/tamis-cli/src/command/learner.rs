//! `tamis learner`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use tamis_core::figure::counted;
use tamis_rollout::call_server::{CallAddress, CallLimits, CallServer};
use tamis_run::durable::Disk;
use tamis_run::log::progress::Console;
use tamis_train::interrupt::Interrupt;
use tamis_train::learner::wire::service::{LearnerService, MAX_BODY_BYTES, MAX_JSON_BYTES};
use tamis_train::native;

use super::announce;
use super::serve::read_key;
use super::train::listen;
use crate::arguments::{LearnerArguments, LearnerFault};
use crate::failure::{FAILED, Failure, USAGE};

/// Interval between checks for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &LearnerArguments) -> Result<u8, Failure> {
    let address = read_address(&arguments.listen)?;
    let token = arguments.api_key_file.as_deref().map(read_key).transpose()?;
    if let CallAddress::Tcp(address) = &address
        && !address.ip().is_loopback()
        && token.is_none()
    {
        return Err(Failure::new(
            USAGE,
            format!(
                "error: {address} can be reached from other machines, but no key is set\n  hint: put a secret into a file and pass it \
                with --api-key-file, or listen on 127.0.0.1"
            ),
        ));
    }
    let interrupt = Interrupt::new();
    listen(&interrupt, "a running pass is aborted; Ctrl-C again exits at once")?;
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = arguments.threads.map_or_else(cores, usize::from);
    let disk = Disk::new();
    let implementation = concat!("tamis ", env!("CARGO_PKG_VERSION"), " native");
    let mut service = LearnerService::new(
        implementation,
        &counted(threads, "thread"),
        &["f32"],
        Box::new(|request| native::open(request, threads, &disk, &interrupt)),
    );
    let limits = CallLimits {
        max_body_bytes: MAX_BODY_BYTES,
        max_json_bytes: MAX_JSON_BYTES,
        max_connections: 64,
        idle_timeout: Duration::from_secs(600),
    };
    let server = CallServer::listen(&address, limits, service.answer_at_once(token)).map_err(|error| {
        let text = format!("error: failed to listen on {}: {error}", arguments.listen);
        Failure::new(FAILED, format!("{text}\n  hint: choose another address with --listen"))
    })?;
    announce(&format!("listening on {}\n", server.address()))?;
    let progress = Console::lines_on_stderr();
    let (mut num_calls, mut silenced) = (0, Vec::new());
    while !interrupt.is_requested() {
        if let Some(call) = server.next(LOOK_EVERY) {
            num_calls += 1;
            let fault = arguments.test_fault.filter(|_| arguments.test_fault_at == Some(num_calls));
            if fault.is_some() {
                progress.warn(&format!("a fault at {}, for a test", call.question.path));
            }
            match fault {
                Some(LearnerFault::KilledBefore) => std::process::abort(),
                Some(LearnerFault::BrokenBefore) => continue,
                Some(LearnerFault::SilentBefore) => {
                    silenced.push(call);
                    continue;
                }
                _ => {}
            }
            let answer = service.answer(&call.question);
            match fault {
                Some(LearnerFault::KilledAfter) => std::process::abort(),
                Some(LearnerFault::BrokenAfter) => {}
                Some(LearnerFault::SilentAfter) => silenced.push(call),
                _ => call.answer(answer),
            }
        } else if service.is_orphan() {
            progress.warn("no run calls any more: the learner ends");
            break;
        }
    }
    Ok(0)
}

fn read_address(text: &str) -> Result<CallAddress, Failure> {
    if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok(CallAddress::Unix(PathBuf::from(path)));
    }
    let found: Vec<SocketAddr> = text.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    // If a name has several addresses, the first one of this machine, otherwise the first.
    let address = found.iter().find(|address| address.ip().is_loopback()).or(found.first());
    address.copied().map(CallAddress::Tcp).ok_or_else(|| {
        Failure::new(
            USAGE,
            format!("error: --listen {text}: there is no such address\n  hint: write HOST:PORT or unix:PATH"),
        )
    })
}
