//! Which of UCX's transports are used.
//!
//! Never those that copy between two processes by the kernel, or through a mapping of all of the other's memory: one
//! side makes these copies alone, and goes on with them when the other has destroyed its worker. Memory that was lent
//! could not be had back from a peer that hangs. They are hardly missed: what both sides can map is shared by
//! [`Region::allocate`], and goes by none of them.
//!
//! [`Region::allocate`]: crate::Region::allocate

const COPYING: [&str; 3] = ["cma", "knem", "xpmem"];
/// What UCX calls all transports through shared memory, and those of them that are left.
const SHARED: [&str; 3] = ["sm", "shm", "mm"];
const SHARED_LEFT: [&str; 2] = ["posix", "sysv"];

/// The user's choice, or all, without those that copy; as `UCX_TLS` names them.
pub fn chosen() -> String {
    without_copying(&std::env::var("WEFT_UCX_TLS").unwrap_or_else(|_| "all".to_owned()))
}

fn without_copying(transports: &str) -> String {
    let names = || transports.trim_start_matches('^').split(',').filter(|name| !COPYING.contains(name));
    if transports.starts_with('^') {
        return format!("^{}", names().chain(COPYING).collect::<Vec<_>>().join(","));
    }
    if names().any(|name| name == "all") {
        return format!("^{}", COPYING.join(","));
    }
    let left = names().flat_map(|name| if SHARED.contains(&name) { SHARED_LEFT.to_vec() } else { vec![name] });
    left.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_choice_leaves_copies_between_processes() {
        for (transports, expected) in [
            ("all", "^cma,knem,xpmem"),
            ("tcp,all", "^cma,knem,xpmem"),
            ("^tcp,cma", "^tcp,cma,knem,xpmem"),
            ("posix,sysv,cma,self", "posix,sysv,self"),
            ("sm,rc_verbs,tcp:aux", "posix,sysv,rc_verbs,tcp:aux"),
            ("tcp", "tcp"),
        ] {
            assert_eq!(without_copying(transports), expected, "{transports}");
        }
    }
}
