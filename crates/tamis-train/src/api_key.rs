//! Keys that servers and learners ask for.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use tamis_core::fault::Fault;

/// A key that servers ask for, for a section of the configuration (`rollout.`): from a file or from a
/// variable of the environment. It is never part of a configuration.
pub fn api_key(section: &str, file: Option<&Path>, variable: Option<&str>) -> Result<Option<String>, Fault> {
    if let Some(path) = file {
        let read = tamis_file::read_text(path, 1 << 16).map_err(|error| {
            let problem = format!("{section}api_key_file: failed to read {}: {error}", path.display());
            Fault::new(problem).with_hint("name a file that holds the key and nothing else")
        });
        return Ok(Some(read?.trim().to_owned()));
    }
    let Some(variable) = variable else { return Ok(None) };
    match std::env::var(variable) {
        Ok(key) if !key.trim().is_empty() => Ok(Some(key.trim().to_owned())),
        _ => Err(Fault::new(format!(
            "{section}api_key_env: the environment variable `{variable}` is not set, or empty"
        ))
        .with_hint(format!("set it before the command, as in `export {variable}=...`"))),
    }
}

/// A key that cannot be guessed.
pub fn random_key() -> Result<String, Fault> {
    let mut bytes = [0_u8; 16];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| {
        Fault::new(format!("no random numbers for a key: /dev/urandom: {error}")).with_hint("mount it")
    })?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
