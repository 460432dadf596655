//! What a user sets for RDMA.

use std::time::Duration;

use crate::LOOK_BEFORE_SLEEP;

/// Whose memory the server moves bytes into and out of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub enum Registration {
    /// What is faster, by the size of the request.
    #[default]
    Auto,
    /// A buffer of the connection, registered once; bytes are copied in and out.
    Static,
    /// The caller's own memory, registered for the transfer; of requests below [`DIRECT_FROM_BYTES`], or
    /// [`REGISTERED_FROM_BYTES`] where the program has registered it before, the connection's.
    Dynamic,
}

/// How arguments and results go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub enum Rpc {
    /// By the connection's socket.
    Socket,
    /// As active messages of UCX, which is faster (docs/rdma.md); what is about the object alone (sync, stat) by the
    /// socket all the same.
    #[default]
    Am,
}

/// The caller's memory is registered for requests of so many bytes.
pub const DIRECT_FROM_BYTES: usize = 1 << 20;
/// The same where that costs nothing, since the program has registered it: below, a request's message costs more than
/// the copy.
pub const REGISTERED_FROM_BYTES: usize = 64 << 10;
/// Most bytes of a connection's buffer, unless set otherwise.
const BUFFER_BYTES_MAX: usize = 16 << 20;

/// See the variables of [`RdmaSettings::from_environment`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmaSettings {
    pub registration: Registration,
    pub rpc: Rpc,
    /// Most bytes of a connection's registered buffer.
    pub buffer_bytes_max: usize,
    /// Requests that such a buffer cannot hold use the caller's memory, also with `Registration::Static`.
    pub dynamic_beyond: bool,
    /// How long a reply is looked for before its thread sleeps.
    pub look: Duration,
}

impl Default for RdmaSettings {
    fn default() -> Self {
        Self {
            registration: Registration::Auto,
            rpc: Rpc::default(),
            buffer_bytes_max: BUFFER_BYTES_MAX,
            dynamic_beyond: false,
            look: LOOK_BEFORE_SLEEP,
        }
    }
}

impl Registration {
    /// From `auto`, `static` or `dynamic`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "static" => Some(Self::Static),
            "dynamic" => Some(Self::Dynamic),
            _ => None,
        }
    }
}

impl Rpc {
    /// From `socket` or `am`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "socket" => Some(Self::Socket),
            "am" => Some(Self::Am),
            _ => None,
        }
    }
}

impl RdmaSettings {
    /// The defaults, and what these variables say:
    ///
    /// | variable | values |
    /// | --- | --- |
    /// | `WEFT_RDMA_REGISTRATION` | `auto`, `static`, `dynamic` |
    /// | `WEFT_RDMA_RPC` | arguments and results: `socket`, `am` |
    /// | `WEFT_RDMA_BUFFER_KIB` | most KiB of a connection's buffer, 64 or more |
    /// | `WEFT_RDMA_BEYOND` | requests larger than that: `pieces`, `dynamic` |
    /// | `WEFT_RDMA_LOOK_US` | microseconds that a reply is looked for before sleeping; more: faster, and busier |
    ///
    /// An error names the variable and what it may say.
    pub fn from_environment() -> Result<Self, String> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut settings = Self::default();
        let refused = |name: &str, text: &str, values: &str| Err(format!("{name} is '{text}', not {values}"));
        if let Some(text) = variable("WEFT_RDMA_REGISTRATION") {
            match Registration::parse(&text) {
                Some(registration) => settings.registration = registration,
                None => return refused("WEFT_RDMA_REGISTRATION", &text, "auto, static or dynamic"),
            }
        }
        if let Some(text) = variable("WEFT_RDMA_RPC") {
            match Rpc::parse(&text) {
                Some(rpc) => settings.rpc = rpc,
                None => return refused("WEFT_RDMA_RPC", &text, "socket or am"),
            }
        }
        if let Some(text) = variable("WEFT_RDMA_BUFFER_KIB") {
            match text.parse::<usize>().ok().filter(|kib| (64..=1 << 20).contains(kib)) {
                Some(kib) => settings.buffer_bytes_max = kib << 10,
                None => return refused("WEFT_RDMA_BUFFER_KIB", &text, "a number of KiB from 64 to 1048576"),
            }
        }
        if let Some(text) = variable("WEFT_RDMA_BEYOND") {
            settings.dynamic_beyond = match text.as_str() {
                "dynamic" => true,
                "pieces" => false,
                _ => return refused("WEFT_RDMA_BEYOND", &text, "pieces or dynamic"),
            };
        }
        if let Some(text) = variable("WEFT_RDMA_LOOK_US") {
            match text.parse::<u32>() {
                Ok(micros) => settings.look = Duration::from_micros(u64::from(micros)),
                Err(_) => return refused("WEFT_RDMA_LOOK_US", &text, "a number of microseconds"),
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(pairs: &[(&str, &str)]) -> Result<RdmaSettings, String> {
        RdmaSettings::from_variables(|name| {
            pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_are_taken_or_refused_by_name() {
        assert_eq!(parsed(&[]), Ok(RdmaSettings::default()));
        let settings = parsed(&[
            ("WEFT_RDMA_REGISTRATION", "static"),
            ("WEFT_RDMA_RPC", "socket"),
            ("WEFT_RDMA_BUFFER_KIB", "2048"),
            ("WEFT_RDMA_BEYOND", "dynamic"),
            ("WEFT_RDMA_LOOK_US", "0"),
        ])
        .unwrap();
        assert_eq!((settings.registration, settings.buffer_bytes_max), (Registration::Static, 2 << 20));
        assert_eq!((settings.look, settings.dynamic_beyond, settings.rpc), (Duration::ZERO, true, Rpc::Socket));
        for (name, value) in [
            ("WEFT_RDMA_REGISTRATION", "fast"),
            ("WEFT_RDMA_RPC", "sockets"),
            ("WEFT_RDMA_BUFFER_KIB", "1"),
            ("WEFT_RDMA_BUFFER_KIB", "16M"),
            ("WEFT_RDMA_BEYOND", ""),
            ("WEFT_RDMA_LOOK_US", "-1"),
        ] {
            let error = parsed(&[(name, value)]).unwrap_err();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
