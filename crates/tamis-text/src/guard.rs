//! Panics of the libraries below as values: a template or a tokenizer file must not be able to end the program.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call; a panic in it becomes its text and is not printed.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                previous(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(outer);
    outcome.map_err(|payload| text(payload.as_ref()))
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("an assertion failed");
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_text() {
        assert_eq!(caught(|| 3), Ok(3));
        assert_eq!(caught(|| panic!("number {}", 5)), Err::<(), _>("number 5".to_owned()));
        assert_eq!(caught(|| panic!("plain\nmore")), Err::<(), _>("plain".to_owned()));
    }
}
