//! Turns panics of outside libraries into values, so that a damaged file cannot end the program.
//!
//! No library of tamis touches the process-wide panic hook: [`catch`] only marks the thread while it runs. A
//! program that does not want caught panics printed calls [`is_catching`] in a hook of its own, as the
//! command line does.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call. A panic in it becomes an error with the first line of the panic's text.
///
/// # Errors
/// The panic's text, or `an assertion failed` if it has none.
pub fn catch<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    let outer = CATCHING.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    CATCHING.set(outer);
    outcome.map_err(|payload| text(payload.as_ref()))
}

/// Whether [`catch`] would catch a panic of this thread: a panic hook then has nothing to print.
pub fn is_catching() -> bool {
    CATCHING.get()
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
        assert_eq!(catch(|| 3), Ok(3));
        assert_eq!(catch(|| panic!("number {}", 5)), Err::<(), _>("number 5".to_owned()));
        assert_eq!(catch(|| panic!("plain\nmore")), Err::<(), _>("plain".to_owned()));
    }

    #[test]
    fn the_thread_is_marked_while_it_runs_and_no_longer() {
        assert!(!is_catching());
        let nested = catch(|| {
            let inner: Result<(), _> = catch(|| panic!("inner"));
            (inner.is_err(), is_catching())
        });
        assert_eq!(nested, Ok((true, true)));
        let other = catch(|| std::thread::scope(|scope| scope.spawn(is_catching).join().ok()));
        assert_eq!(other, Ok(Some(false)), "another thread is not");
        assert!(!is_catching());
    }
}
