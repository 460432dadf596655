//! The verbs, a file each: what can be typed (`Args`, whose text is the help), and `run`.

pub mod bench;
pub mod cat;
pub mod completions;
pub mod cp;
pub mod debug;
pub mod df;
pub mod doctor;
pub mod down;
pub mod guard;
pub mod host;
pub mod layout;
pub mod locate;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mount;
pub mod mv;
pub mod node;
pub mod rm;
pub mod serve;
pub mod stat;
pub mod status;
pub mod store;
pub mod umount;
pub mod up;
pub mod user;
