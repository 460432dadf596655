//! The Python package as users get it: a wheel, installed into a virtual environment, beside a file system of two nodes
//! that `weft up` starts. The tests are in `tests/python`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use weft_tests::command::{Up, binaries, by_ucx, is_installed, run};

/// Name of the file system of a test.
const NAME: &str = "python";

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Python that has the package, and what its tests need. `None`, with a reason: it cannot be had.
fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    PYTHON.get_or_init(|| install("environment", &[])).as_deref()
}

/// Makes a virtual environment with the package, and with more packages of others.
fn install(name: &str, more: &[&str]) -> Option<PathBuf> {
    if !is_installed("python3") {
        return None;
    }
    let place = binaries().join("python");
    let environment = place.join(name);
    let python = environment.join("bin/python");
    let is_new_enough = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
    if !Command::new("python3").args(["-c", is_new_enough]).status().is_ok_and(|status| status.success()) {
        eprintln!("skip: there is no Python 3.11 that can make virtual environments (package python3-venv)");
        return None;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment));
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run(Command::new(&python).args(pip).arg("-r").arg(package().join("tests/requirements.txt")).args(more));
    let target = binaries().parent().expect("it is in target").to_owned();
    let script = package().join("../../scripts/python-wheel.sh");
    let built = run(Command::new(script).arg("dev").arg(&place).env("CARGO_TARGET_DIR", target));
    let wheel = String::from_utf8_lossy(&built.stdout).trim().to_owned();
    run(Command::new(&python).args(pip).args(["--force-reinstall", "--no-deps", &wheel]));
    Some(python)
}

/// Python beside a file system, away from the sources of the package.
fn command(file_system: &Up, python: &Path) -> Command {
    let mut command = file_system.command(python);
    command.env("WEFT_TEST_NAME", NAME).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(package().join("tests/python"));
    command
}

#[test]
fn the_package_does_what_its_tests_say() {
    let Some(python) = python() else { return };
    let file_system = Up::start(NAME, "package");
    let pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider"];
    run(command(&file_system, python).args(pytest));
    // The same without descriptors of the store's files.
    let by_tcp = ["test_files.py", "test_locks.py", "test_exports.py", "test_split.py"];
    run(command(&file_system, python).args(pytest).args(by_tcp).env("WEFT_TRANSPORT", "tcp"));
    // By RDMA, inside this machine.
    if let Some(ucx) = by_ucx() {
        run(command(&file_system, python).args(pytest).arg("test_memory.py").envs(ucx));
    }
}

#[test]
fn its_types_are_those_that_it_says() {
    let Some(python) = python() else { return };
    let sources = package().join("python/weft");
    let cache = binaries().join("python/mypy");
    let mypy = |module: &str| {
        let mut command = Command::new(python);
        command.args(["-m", module]).current_dir(binaries().join("python"));
        command
    };
    let settings = package().join("pyproject.toml");
    run(mypy("mypy").arg("--config-file").arg(settings).arg("--cache-dir").arg(&cache).arg(&sources));
    run(mypy("mypy.stubtest").args(["--ignore-missing-stub", "weft._native"]));
}

/// Gigabytes to install, so that it is part of `make test-long`.
#[test]
#[ignore = "installs PyTorch"]
fn pytorch_works_with_it() {
    let Some(python) = install("environment-torch", &["torch==2.15.0"]) else { return };
    let file_system = Up::start(NAME, "torch");
    run(command(&file_system, &python).args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_torch.py"]));
}

/// The programs of the guide, each by itself.
#[test]
fn programs_of_the_guide_do_what_it_says() {
    let Some(python) = python() else { return };
    let file_system = Up::start("job", "guide");
    let guide = std::fs::read_to_string(package().join("../../docs/guide/python.md")).expect("the guide is there");
    let programs: Vec<&str> = guide.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(programs.len() > 3, "the guide has programs");
    for program in programs {
        let told = run(command(&file_system, python).arg("-c").arg(program));
        let prints = program.lines().filter_map(|line| line.split_once("  # prints ")).map(|(_, told)| told);
        let expected: Vec<&str> = prints.collect();
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert_eq!(told.lines().collect::<Vec<_>>(), expected, "{program}");
    }
}
