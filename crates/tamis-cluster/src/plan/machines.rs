//! The machines that a run is planned for: their GPUs and memory.

use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tamis_config::ByteSize;

use tamis_process::{ProgramError, ask};

/// Longest time for `nvidia-smi`: it may have to load the driver first.
const DRIVER: Duration = Duration::from_secs(20);

/// Least memory of a GPU, bytes. A smaller number lacks its unit.
const LEAST: u64 = 1 << 20;

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its number in `nvidia-smi`, and in `CUDA_VISIBLE_DEVICES` with `CUDA_DEVICE_ORDER=PCI_BUS_ID`, which
    /// tamis sets for all processes of a run.
    pub id: String,
    /// The driver's name of its kind.
    pub name: String,
    /// Its memory, bytes.
    pub memory: u64,
    /// Memory in use by other processes, bytes.
    #[serde(default)]
    pub used: u64,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Its name or address.
    pub name: String,
    /// Its GPUs that may be used.
    pub gpus: Vec<Gpu>,
    /// Memory that is free, bytes; `None` if unknown.
    pub memory: Option<u64>,
    /// Number of processor cores; `None` if unknown.
    pub cores: Option<u64>,
}

/// Machines, and how they are known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Machines {
    /// Inspected.
    Known(Vec<Machine>),
    /// Named by the user: there are no others.
    Named(Vec<Machine>),
    /// Not inspected, with the reason.
    Unknown(String),
}

impl Machine {
    /// Total number of GPUs.
    pub fn num_gpus(&self) -> usize {
        self.gpus.len()
    }

    /// This machine, without its GPUs.
    pub fn here() -> Self {
        Self {
            name: "this machine".to_owned(),
            gpus: Vec::new(),
            memory: tamis_model::available_memory(),
            cores: std::thread::available_parallelism().ok().map(|cores| cores.get() as u64),
        }
    }
}

impl Machines {
    /// This machine and its GPUs. `Unknown` if there are signs of GPUs but `nvidia-smi` reports none.
    pub fn here(device: &str) -> Self {
        let is_missing = |error: &ProgramError| matches!(error, ProgramError::Start { .. });
        let is_named = std::env::var_os("CUDA_VISIBLE_DEVICES").is_some_and(|names| !names.is_empty());
        match find_gpus() {
            Ok(gpus) => Self::Known(vec![Machine { gpus, ..Machine::here() }]),
            Err(error) if device == "cpu" || is_missing(&error) && !is_named && device == "auto" => {
                Self::Known(vec![Machine::here()])
            }
            Err(error) => Self::Unknown(format!("the GPUs of this machine are not known: {error}")),
        }
    }

    /// Parses `[MACHINESx]GPUSxMEMORY`: `8x80GiB` is one machine with eight GPUs.
    ///
    /// # Errors
    /// A sentence about the error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not [MACHINESx]GPUSxMEMORY, such as 8x80GiB or 2x8x141GB");
        let mut parts: Vec<&str> = text.split('x').collect();
        let memory = parts.pop().and_then(ByteSize::parse).map(|size| size.0);
        let memory = memory.filter(|&bytes| bytes >= LEAST).ok_or_else(wrong)?;
        let counts: Option<Vec<usize>> = parts.iter().map(|part| part.parse().ok()).collect();
        let (machines, gpus) = match counts.as_deref() {
            Some(&[gpus]) => (1, gpus),
            Some(&[machines, gpus]) => (machines, gpus),
            _ => return Err(wrong()),
        };
        if !(1..=4096).contains(&machines) || !(1..=1024).contains(&gpus) {
            return Err(wrong());
        }
        let machine = |number: usize| Machine {
            name: format!("machine {number}"),
            gpus: (0..gpus)
                .map(|id| Gpu { id: id.to_string(), name: "GPU".to_owned(), memory, used: 0 })
                .collect(),
            memory: None,
            cores: None,
        };
        Ok(Self::Named((1..=machines).map(machine).collect()))
    }

    /// Only the first of them.
    #[must_use]
    pub fn first_alone(self) -> Self {
        let first = |machines: Vec<Machine>| machines.into_iter().take(1).collect();
        match self {
            Self::Known(machines) => Self::Known(first(machines)),
            Self::Named(machines) => Self::Named(first(machines)),
            Self::Unknown(why) => Self::Unknown(why),
        }
    }

    /// The machines; none if unknown.
    pub fn known(&self) -> &[Machine] {
        match self {
            Self::Known(machines) | Self::Named(machines) => machines,
            Self::Unknown(_) => &[],
        }
    }
}

/// The GPUs that processes started here see, in their order: all, or those of `CUDA_VISIBLE_DEVICES`.
///
/// # Errors
/// `nvidia-smi` cannot be run, or does not list GPUs.
pub fn find_gpus() -> Result<Vec<Gpu>, ProgramError> {
    let all = list_gpus()?;
    let Ok(visible) = std::env::var("CUDA_VISIBLE_DEVICES") else {
        return Ok(all.into_iter().map(|(_, gpu)| gpu).collect());
    };
    choose(&all, &visible)
        .ok_or_else(|| untold(&format!("it lists no GPU of CUDA_VISIBLE_DEVICES={visible}")))
}

/// The error for output of the driver that is of no use.
fn untold(said: &str) -> ProgramError {
    ProgramError::Failed {
        program: "nvidia-smi".to_owned(),
        status: "no numbers".to_owned(),
        said: said.to_owned(),
    }
}

/// The GPUs that `CUDA_VISIBLE_DEVICES` names, up to the first that does not exist, as CUDA reads it. `None`
/// if it names some and none is found, for example parts of a GPU (MIG).
fn choose(all: &[(String, Gpu)], visible: &str) -> Option<Vec<Gpu>> {
    let mut chosen = Vec::new();
    if visible.trim().is_empty() || visible.trim() == "-1" {
        return Some(chosen);
    }
    for name in visible.split(',').map(str::trim) {
        let found =
            all.iter().find(|(uuid, gpu)| gpu.id == name || (name.len() > 4 && uuid.starts_with(name)));
        let Some((_, gpu)) = found else { break };
        chosen.push(gpu.clone());
    }
    (!chosen.is_empty()).then_some(chosen)
}

/// All GPUs that the driver knows, with their UUIDs, in the order of their numbers.
fn list_gpus() -> Result<Vec<(String, Gpu)>, ProgramError> {
    let query = "--query-gpu=index,uuid,memory.total,memory.used,name";
    let text = ask(Command::new("nvidia-smi").args([query, "--format=csv,noheader,nounits"]), DRIVER)?;
    let read = read_gpus(&text);
    if read.is_empty() && !text.trim().is_empty() {
        return Err(untold("it does not report the memory of the GPUs"));
    }
    Ok(read)
}

/// Reads a line a GPU: number, UUID, MiB in all, MiB in use, name.
fn read_gpus(text: &str) -> Vec<(String, Gpu)> {
    let read = |line: &str| {
        let mut parts = line.splitn(5, ',').map(str::trim);
        let (id, uuid) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        let mut mebibytes = || parts.next()?.parse::<u64>().ok().map(|number| number << 20);
        let (memory, used) = (mebibytes()?, mebibytes()?);
        Some((uuid, Gpu { id, name: parts.next()?.to_owned(), memory, used }))
    };
    text.lines().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "0, GPU-aaaa1111, 81559, 4, NVIDIA H100 80GB HBM3\n1, GPU-bbbb2222, 81559, 30000, NVIDIA H100 80GB HBM3\n";

    #[test]
    fn what_the_driver_tells_is_read() {
        let all = read_gpus(TWO);
        assert_eq!(all.len(), 2);
        let (uuid, second) = &all[1];
        assert_eq!(uuid, "GPU-bbbb2222");
        assert_eq!((second.id.as_str(), second.memory, second.used), ("1", 81_559 << 20, 30_000 << 20));
        assert_eq!(second.name, "NVIDIA H100 80GB HBM3");
        // A GPU that reports no memory (`[N/A]`) cannot be planned for.
        assert!(read_gpus("0, GPU-cc, [N/A], [N/A], GB10\nnothing\n").is_empty());
        let chosen = |visible| {
            let gpus = choose(&read_gpus(TWO), visible)?;
            Some(gpus.into_iter().map(|gpu| gpu.id).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(chosen("1,0").as_deref(), Some("1 0"));
        assert_eq!(chosen("GPU-bbbb").as_deref(), Some("1"));
        assert_eq!(chosen("1,7,0").as_deref(), Some("1"), "as CUDA does, up to the first that is not there");
        assert_eq!((chosen("").as_deref(), chosen("-1").as_deref()), (Some(""), Some("")));
        assert_eq!(chosen("MIG-1234"), None);
    }

    #[test]
    fn machines_are_written_as_their_counts_and_memory() {
        let machines = Machines::parse("2x8x80GiB").expect("machines");
        let known = machines.known();
        assert_eq!((known.len(), known[0].gpus.len(), known[1].gpus[7].memory), (2, 8, 80 << 30));
        assert_eq!(Machines::parse("4x24GB").expect("machines").known()[0].gpus[0].memory, 24_000_000_000);
        // No GPU has 80 bytes: the unit is missing.
        for wrong in ["80GiB", "8x80", "0x80GiB", "1x2x3x4GiB", "8 GPUs", "", "ax80GiB"] {
            let said = Machines::parse(wrong).expect_err(wrong);
            assert!(said.contains("[MACHINESx]GPUSxMEMORY"), "{said}");
        }
    }
}
