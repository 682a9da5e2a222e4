//! Finds processes that have left their group, by a variable that they have inherited.

/// Kills every process of this user that was started with the variable `name` set to `value`. Returns whether
/// there was one. This only works on systems that list the environments of processes (Linux).
///
/// The search is repeated, to find processes that were started meanwhile. A process that was started with a
/// clean environment is not found.
pub fn kill_marked(name: &str, value: &str) -> bool {
    let mut has_found = false;
    // A killed process is still listed until it is reaped, but without its environment.
    for _ in 0..MOST_LOOKS {
        let found = find(name, value);
        if found.is_empty() {
            break;
        }
        has_found = true;
        found.into_iter().for_each(kill);
    }
    has_found
}

/// Most rounds of the search. A process that starts others faster than they are killed is left.
const MOST_LOOKS: usize = 8;

#[cfg(target_os = "linux")]
fn find(name: &str, value: &str) -> Vec<i32> {
    let wanted = format!("{name}={value}").into_bytes();
    let of = |entry: std::fs::DirEntry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        // The environments of other users' processes cannot be read.
        let variables = std::fs::read(entry.path().join("environ")).ok()?;
        variables.split(|&byte| byte == 0).any(|variable| variable == wanted).then_some(number)
    };
    std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(of).collect()
}

#[cfg(not(target_os = "linux"))]
fn find(_name: &str, _value: &str) -> Vec<i32> {
    Vec::new()
}

#[cfg(unix)]
fn kill(process: i32) {
    let process = nix::unistd::Pid::from_raw(process);
    let _ = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL);
}

#[cfg(not(unix))]
fn kill(_process: i32) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn who_has_inherited_the_mark_is_killed_and_nobody_else() {
        let mark = format!("{}", std::process::id());
        let start = |value: &str| {
            Command::new("sleep").arg("1000").env("TAMIS_TEST_MARK", value).spawn().expect("started")
        };
        let (mut marked, mut other) = (start(&mark), start(&format!("{mark}0")));
        // The mark is visible once the program has started, which may take a moment.
        let began = std::time::Instant::now();
        while !kill_marked("TAMIS_TEST_MARK", &mark) {
            assert!(began.elapsed().as_secs() < 60, "it is not found");
        }
        assert_eq!(marked.wait().expect("ended").code(), None);
        assert!(matches!(other.try_wait(), Ok(None)));
        other.kill().expect("killed");
        other.wait().expect("ended");
    }
}
