//! This machine: memory, GPUs and their driver, disks, name.

use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tamis_core::figure;
use tamis_model::SimdLevel;

use super::{Finding, Topic};
use crate::plan::disks::free_disk;
use crate::plan::machines::{Machine, find_gpus};
use tamis_process::{ProgramError, ask};

/// Longest time for a program that describes the machine.
const LONGEST: Duration = Duration::from_secs(30);
/// Least room in shared memory for NCCL and PyTorch's processes; containers begin with 64 MiB.
const LEAST_SHARED: u64 = 1 << 30;
/// Fewest files that may be open: a connection to each of many servers, and the shards of a model.
const LEAST_FILES: u64 = 4096;

/// An order of GPUs that the user has set, but that tamis does not use for runs.
fn other_order(order: Option<&str>) -> Option<Finding> {
    let order = order.filter(|&order| !order.is_empty() && order != "PCI_BUS_ID")?;
    Some(Finding::bad(
        format!("`CUDA_DEVICE_ORDER` is {order}: a run numbers GPUs as `nvidia-smi` does (PCI_BUS_ID)"),
        "make sure that the numbers of `CUDA_VISIBLE_DEVICES` are those of `nvidia-smi`, and unset `CUDA_DEVICE_ORDER`",
    ))
}

pub(super) fn examine(run_dir: &Path) -> (Topic, Machine) {
    let mut found = Vec::new();
    let here = Machine::here();
    found.push(Finding::good(format!(
        "{}, {}; {}",
        here.cores
            .map_or("processor cores unknown".to_owned(), |cores| figure::counted(cores, "processor core")),
        here.memory
            .map_or("memory unknown".to_owned(), |bytes| format!("{} of memory free", figure::bytes(bytes))),
        engine()
    )));
    let gpus = find_gpus();
    match &gpus {
        Ok(gpus) if gpus.is_empty() => found.push(Finding::bad(
            "there are GPUs, but `CUDA_VISIBLE_DEVICES` names none of them".to_owned(),
            "unset it, or name some (`CUDA_VISIBLE_DEVICES=0,1`)",
        )),
        Ok(gpus) => {
            found.push(Finding::good(format!("NVIDIA driver {}", driver().unwrap_or("unknown".to_owned()))));
            found.extend(other_order(std::env::var("CUDA_DEVICE_ORDER").ok().as_deref()));
            found.extend(gpus.iter().map(|gpu| {
                let text = format!("GPU {}: {}, {}", gpu.id, gpu.name, figure::bytes(gpu.memory));
                if gpu.used > 1 << 29 {
                    Finding::bad(
                        format!("{text}, other processes have {} of it", figure::bytes(gpu.used)),
                        "stop them (`nvidia-smi` lists them), or exclude the GPU with `CUDA_VISIBLE_DEVICES`",
                    )
                } else {
                    Finding::good(text)
                }
            }));
        }
        Err(error @ ProgramError::Start { .. }) => {
            found.push(Finding::note(format!("no NVIDIA GPU: {error}")));
        }
        Err(error) => {
            found
                .push(Finding::bad(format!("the GPUs are not known: {error}"), "run `nvidia-smi` by itself"));
        }
    }
    found.push(match free_disk(run_dir) {
        Some(bytes) => {
            Finding::good(format!("run directories ({}): {} free", run_dir.display(), figure::bytes(bytes)))
        }
        None => {
            Finding::note(format!("run directories ({}): the free space is not known", run_dir.display()))
        }
    });
    if let Some(bytes) = free_disk(Path::new("/dev/shm")) {
        let text = format!("shared memory (/dev/shm): {} free", figure::bytes(bytes));
        found.push(if bytes >= LEAST_SHARED {
            Finding::good(text)
        } else {
            Finding::bad(
                format!("{text}; NCCL between GPUs of a machine needs 1 GiB"),
                "in a container: `--shm-size=16g` or `--ipc=host` (Docker), an emptyDir of medium Memory at /dev/shm \
                 (Kubernetes)",
            )
        });
    }
    found.extend(open_files());
    found.extend(name());
    (Topic::new("this machine", found), Machine { gpus: gpus.unwrap_or_default(), ..here })
}

/// The SIMD level of the native engine.
fn engine() -> String {
    let level = match SimdLevel::detect() {
        SimdLevel::Portable => "without AVX2, which is slow",
        SimdLevel::Avx2 => "with AVX2",
        SimdLevel::Avx512 => "with AVX-512",
    };
    format!("the native engine computes {level}")
}

fn driver() -> Option<String> {
    let query = ["--query-gpu=driver_version", "--format=csv,noheader"];
    let text = ask(Command::new("nvidia-smi").args(query), LONGEST).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

/// A finding if the limit on open files is low.
fn open_files() -> Option<Finding> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    (limit < LEAST_FILES).then(|| {
        Finding::bad(
            format!("a process may have {limit} files open at once"),
            "raise it before the start (`ulimit -n 65536`)",
        )
    })
}

/// Whether other machines can reach this one by its host name.
fn name() -> Option<Finding> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim();
    let addresses = (name, 0).to_socket_addrs();
    Some(match addresses.map(|found| found.map(|one| one.ip()).collect::<Vec<_>>()) {
        Ok(found) if found.iter().any(|address| !address.is_loopback()) => {
            let first = found.iter().find(|address| !address.is_loopback())?;
            Finding::good(format!("its name {name} is {first}, which other machines use to reach it"))
        }
        Ok(_) => Finding::note(format!(
            "its name {name} is a loopback address, which other machines cannot reach: for ranks on several machines \
             set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the network interface between them"
        )),
        Err(_) => Finding::note(format!(
            "its name {name} has no address: ranks on several machines need one (/etc/hosts, or GLOO_SOCKET_IFNAME)"
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_of_gpus_that_no_run_has_is_told() {
        for order in [None, Some(""), Some("PCI_BUS_ID")] {
            assert_eq!(other_order(order).map(|finding| finding.text), None);
        }
        let finding = other_order(Some("FASTEST_FIRST")).expect("told");
        assert!(finding.text.starts_with("`CUDA_DEVICE_ORDER` is FASTEST_FIRST: "), "{}", finding.text);
    }
}
