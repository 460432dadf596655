//! `cargo run -q -p weft-xtask -- tidy`: see [`weft_xtask::tidy`].

use std::process::ExitCode;
use weft_xtask::tidy;

const USAGE: &str = "usage: cargo run -q -p weft-xtask -- tidy";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments != ["tidy"] {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    match tidy::run() {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            for finding in &findings {
                println!("{finding}");
            }
            eprintln!("{} findings", findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::from(2)
        }
    }
}
