//! Tools of the workspace.

pub mod tidy;
