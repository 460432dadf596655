//! Panics of a library at damaged data, as errors: nothing of them is printed.
//!
//! The process has one hook that prints panics. The first use puts another one before it, which keeps what a panic
//! says while a thread is in [`quietly`], and leaves all else to the one that was there. A hook that the program sets
//! later takes its place: then panics are printed, and still are errors.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;

static HOOK: Once = Once::new();

thread_local! {
    /// How many calls the thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Does work that may panic. An error: what the panic said, and where.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // No hook can be set by a thread that panics already.
    if !std::thread::panicking() {
        HOOK.call_once(install);
    }
    DEPTH.set(DEPTH.get() + 1);
    let done = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    done.map_err(|_| SAID.take().unwrap_or_else(|| "a panic".to_owned()))
}

fn install() {
    let before = take_hook();
    set_hook(Box::new(move |panic| if DEPTH.get() > 0 { SAID.set(Some(text_of(panic))) } else { before(panic) }));
}

fn text_of(panic: &PanicHookInfo<'_>) -> String {
    let what = panic.payload_as_str().unwrap_or("a panic");
    let Some(place) = panic.location() else { return what.to_owned() };
    // Where the library was built is nobody's business.
    let file = Path::new(place.file()).file_name().unwrap_or_default().to_string_lossy();
    format!("{what} ({file}:{})", place.line())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const CHILD: &str = "WEFT_REGION_QUIET_CHILD";

    /// What the process writes to standard error can only be seen from outside.
    #[test]
    fn a_panic_is_an_error_and_prints_nothing() {
        let name = "quiet::tests::a_panic_is_an_error_and_prints_nothing";
        if std::env::var_os(CHILD).is_some() {
            let error = crate::tree::guarded::<()>(|| panic!("page 7 is upside down")).unwrap_err().to_string();
            assert!(error.contains("page 7 is upside down (quiet.rs:"), "{error}");
            assert_eq!(quietly(|| quietly(|| 5)), Ok(Ok(5)));
            let other = catch_unwind(|| panic!("this one is printed"));
            assert!(other.is_err());
            return;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let done = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{printed}");
        assert!(printed.contains("this one is printed") && !printed.contains("upside down"), "{printed}");
    }
}
