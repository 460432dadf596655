//! The C library as programs get it: linked with its versions of symbols, called from C, checked by sanitizers.
//!
//! The programs are in `tests/c`; this builds and runs them, beside a file system of two nodes that `weft up` starts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use weft_tests::command::{Up, binaries, by_ucx, is_installed, run};

/// Name of the file system of a test.
const NAME: &str = "c-library";
/// Tests of `main.c` that fork: the child's copies of its parent's memory are leaks to a checker of leaks.
const FORKING: [&str; 2] = ["forks", "exports"];
/// The others.
const TESTS: [&str; 19] = [
    "together",
    "files",
    "names",
    "attributes",
    "listings",
    "pieces",
    "locks",
    "queues",
    "threads",
    "reopened",
    "remembered",
    "in-flight",
    "handles",
    "arguments",
    "options",
    "copies",
    "registered",
    "signals",
    "ends",
];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Header and libraries, as they are installed.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let place = binaries().join("c-library");
        run(Command::new(package().join("../../scripts/c-library.sh")).args([&binaries(), &place]));
        place
    })
}

/// What a C program is built with: as pkg-config would say.
fn compiler(program: &str, output: &Path) -> Command {
    let mut command = Command::new(program);
    let (include, libraries) = (library().join("include"), library().join("lib"));
    command.args(["-Wall", "-Wextra", "-Werror", "-g"]).arg("-o").arg(output);
    command.arg(format!("-I{}", include.display())).arg(format!("-L{}", libraries.display()));
    command.arg(format!("-Wl,-rpath,{}", libraries.display()));
    command
}

/// Builds the suite. Returns its program.
fn suite(name: &str, flags: &[&str]) -> PathBuf {
    let output = library().join(name);
    let sources = ["main.c", "use.c", "closing.c", "refusals.c", "memory.c", "processes.c"];
    let sources = sources.map(|file| package().join("tests/c").join(file));
    run(compiler("cc", &output).arg("-std=c11").args(flags).args(sources).args(["-lweft", "-lpthread"]));
    output
}

/// A file system for one test.
fn up(test: &str) -> Up {
    Up::start(NAME, test)
}

fn run_suite(file_system: &Up, program: &Path, tests: &[&str]) {
    run(file_system.command(program).arg(NAME).args(tests));
}

/// What a program that ended without closing it has left.
fn check_unclosed(file_system: &Up) {
    let told = run(file_system.command(&binaries().join("weft")).args(["cat", &format!("{NAME}:/ends")]));
    assert_eq!(told.stdout, b"unclosed\n");
}

#[test]
fn c_programs_do_what_they_would_with_files() {
    let file_system = up("suite");
    let program = suite("suite", &["-O2"]);
    run_suite(&file_system, &program, &[]);
    check_unclosed(&file_system);
    let sockets = run(file_system.command(&program).env("WEFT_TRANSPORT", "tcp").arg(NAME));
    assert!(String::from_utf8_lossy(&sockets.stdout).ends_with("ends holds\n"));
    // By RDMA, inside this machine.
    if let Some(ucx) = by_ucx() {
        run(file_system.command(&program).envs(ucx).arg(NAME).args(["copies", "registered"]));
    }
}

#[test]
fn c_programs_use_no_memory_that_is_not_theirs() {
    let file_system = up("sanitized");
    let program = suite("suite-sanitized", &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    run_suite(&file_system, &program, &TESTS);
    check_unclosed(&file_system);
    run(file_system.command(&program).env("ASAN_OPTIONS", "detect_leaks=0").arg(NAME).args(FORKING));
}

#[test]
fn valgrind_finds_nothing() {
    if !is_installed("valgrind") {
        return;
    }
    let file_system = up("valgrind");
    let program = suite("suite-valgrind", &[]);
    let mut command = file_system.command(Path::new("valgrind"));
    command.args(["-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    run(command.arg(program).arg(NAME).args(TESTS));
    check_unclosed(&file_system);
}

#[test]
fn the_library_can_be_linked_statically_and_from_cpp() {
    if !is_installed("c++") {
        return;
    }
    let file_system = up("linked");
    let source = library().join("version.cc");
    std::fs::write(&source, "#include <weft.h>\n#include <cstdio>\nint main() { std::puts(weft_version()); }\n")
        .unwrap();
    let archive = library().join("lib/libweft.a");
    let output = library().join("version");
    run(compiler("c++", &output).arg(&source).arg(archive).args(["-lpthread", "-lm", "-ldl", "-lrt", "-lutil"]));
    let told = run(&mut file_system.command(&output));
    assert_eq!(String::from_utf8_lossy(&told.stdout).trim(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn cmake_finds_both_libraries() {
    if !is_installed("cmake") {
        return;
    }
    let project = library().join("cmake");
    std::fs::create_dir_all(&project).unwrap();
    let source = "#include <weft.h>\n#include <stdio.h>\nint main(void) { puts(weft_version()); }\n";
    std::fs::write(project.join("version.c"), source).unwrap();
    let wanted = env!("CARGO_PKG_VERSION");
    let lists = format!(
        "cmake_minimum_required(VERSION 3.18)\nproject(version C)\nfind_package(weft {wanted} REQUIRED)\n\
         add_executable(shared version.c)\ntarget_link_libraries(shared weft::weft)\n\
         add_executable(static version.c)\ntarget_link_libraries(static weft::static)\n"
    );
    std::fs::write(project.join("CMakeLists.txt"), lists).unwrap();
    let build = project.join("build");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", library().display());
    // Afresh: what is there may be of a checkout that was moved.
    run(Command::new("cmake").arg("--fresh").arg("-S").arg(&project).arg("-B").arg(&build).arg(prefix));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["shared", "static"] {
        let told = run(&mut Command::new(build.join(program)));
        assert_eq!(String::from_utf8_lossy(&told.stdout).trim(), wanted);
    }
}

/// The program of the guide, and that of the examples.
#[test]
fn programs_of_the_guide_do_what_it_says() {
    let file_system = up("guide");
    let root = package().join("../..");
    let guide = std::fs::read_to_string(root.join("docs/guide/c.md")).expect("the guide is there");
    let (_, rest) = guide.split_once("```c\n").expect("it has a program");
    let (program, _) = rest.split_once("```").expect("which ends");
    let source = library().join("guide.c");
    std::fs::write(&source, program.replace("\"job\"", &format!("\"{NAME}\""))).unwrap();
    let build = |name: &str, source: &Path| {
        let output = library().join(name);
        run(compiler("cc", &output).arg(source).arg("-lweft"));
        output
    };
    let told = run(&mut file_system.command(&build("guide", &source)));
    assert_eq!(told.stdout, b"hello\n");

    run(file_system.command(&binaries().join("weft")).args(["mkdir", "-p", &format!("{NAME}:/a/b")]));
    run(file_system.command(&binaries().join("weft")).arg("cp").arg(source).arg(format!("{NAME}:/a/b/guide.c")));
    let told = run(file_system.command(&build("tally", &root.join("examples/c/tally.c"))).args([NAME, "/"]));
    let bytes = 5 + std::fs::metadata(library().join("guide.c")).unwrap().len();
    let expected = format!("2 files, {bytes} bytes, {bytes} of them on this machine\n");
    assert_eq!(String::from_utf8_lossy(&told.stdout), expected);

    let share = build("share", &root.join("examples/c/share.c"));
    let told = run(file_system.command(&share).args([NAME, "/shared", "4"]));
    assert_eq!(String::from_utf8_lossy(&told.stdout), "4 processes wrote 4194304 bytes, 0 failed\n");
}

#[test]
fn symbols_have_versions_and_the_library_a_soname() {
    let library = library().join("lib/libweft.so");
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
    let text = String::from_utf8_lossy(&dynamic.stdout).into_owned();
    assert!(text.contains("Library soname: [libweft.so.0]"), "{text}");

    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let told: Vec<&str> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let exported: Vec<&str> = told.iter().filter_map(|symbol| symbol.strip_suffix("@@WEFT_0.1")).collect();
    let others: Vec<_> = told.iter().filter(|symbol| !symbol.contains("WEFT_0.1")).collect();
    assert!(others.is_empty(), "{others:?}");

    let header = std::fs::read_to_string(package().join("weft.h")).expect("the header is there");
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for symbol in &exported {
        assert!(header.contains(&format!("{symbol}(")), "{symbol} is not in weft.h");
    }
    let declared =
        header.split(|c: char| !is_letter(c) && c != '(').filter_map(|word| word.split_once('(').map(|w| w.0));
    for name in declared.filter(|name| name.starts_with("weft_")) {
        assert!(exported.contains(&name), "{name}, of weft.h, is not in the library");
    }
}
