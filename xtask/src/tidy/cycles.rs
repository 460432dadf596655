//! Import cycles between the files of a crate.
//!
//! Files that all import each other are one module cut in pieces: none of them can be read or tested alone. Up to three
//! are a type with its parts. What is tied by methods of one type alone, without an import, is not seen.

use super::code::{item_end, only_code};
use super::{Finding, Source};
use std::collections::{BTreeMap, BTreeSet};

/// Most files in one cycle.
const FILES_MAX: usize = 3;
/// Crates with larger cycles, which may not grow.
const LARGER: [(&str, usize); 5] =
    [("crates/metadata", 7), ("crates/region", 34), ("crates/transport", 6), ("fronts/cli", 10), ("sim", 11)];

/// A module's path below its crate's root.
type Module = Vec<String>;

/// Checks all files together.
pub fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    let mut crates: BTreeMap<&str, BTreeMap<Module, &Source>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_rust() && !source.is_test()) {
        if let Some((folder, module)) = place(&source.path) {
            crates.entry(folder).or_default().insert(module, source);
        }
    }
    for (folder, modules) in crates {
        let max = LARGER.iter().find(|(name, _)| *name == folder).map_or(FILES_MAX, |(_, max)| *max);
        for cycle in cycles(&imports(&modules)).into_iter().filter(|cycle| cycle.len() > max) {
            let names: Vec<String> = cycle.iter().map(|module| module.join("::")).collect();
            let text = format!("an import cycle of {} files: {}", names.len(), names.join(", "));
            findings.push(Finding::new(&modules[&cycle[0]].path, 0, text));
        }
    }
}

/// The crate's folder, and the module. `None`: not below a `src`.
fn place(path: &str) -> Option<(&str, Module)> {
    let (folder, file) = path.split_once("/src/")?;
    let mut module: Module = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if module.len() == 1 && matches!(module[0].as_str(), "lib" | "main") {
        module.clear();
    }
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    Some((folder, module))
}

/// Which modules each names, outside its tests. The root is left out: it names what there is.
fn imports(modules: &BTreeMap<Module, &Source>) -> BTreeMap<Module, BTreeSet<Module>> {
    let named = |(module, source): (&Module, &&Source)| {
        let code = without_tests(&only_code(&source.text));
        let found = paths(&code).into_iter().filter_map(|path| resolve(module, &path, modules)).collect();
        (module.clone(), found)
    };
    modules.iter().filter(|(module, _)| !module.is_empty()).map(named).collect()
}

fn without_tests(code: &str) -> String {
    let lines: Vec<&str> = code.lines().collect();
    let mut kept = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let is_tests = lines[at].contains("cfg(test)") && lines.get(at + 1).is_some_and(|line| line.contains("mod "));
        at = if is_tests {
            item_end(&lines, at + 1) + 1
        } else {
            kept.push(lines[at]);
            at + 1
        };
    }
    kept.join("\n")
}

/// Paths that begin with `crate` or `super`, groups taken apart, and those of `use` items.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("use ") {
        let begins = rest[..at].chars().next_back().is_none_or(|c| c.is_whitespace() || c == ')');
        rest = &rest[at + 4..];
        if begins && let Some((item, _)) = rest.split_once(';') {
            expand(&[], item, &mut found);
        }
    }
    for root in ["crate::", "super::"] {
        // `pub(in crate::x)` imports nothing.
        for (at, _) in code.match_indices(root).filter(|(at, _)| !code[..*at].ends_with("(in ")) {
            let end = code[at..].find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
            let path = &code[at..at + end.unwrap_or(code.len() - at)];
            found.push(path.split("::").map(str::to_owned).collect());
        }
    }
    found
}

/// The paths of a `use` item.
fn expand(prefix: &[String], item: &str, found: &mut Vec<Vec<String>>) {
    let (path, group) = match item.split_once('{') {
        Some((path, group)) => (path, Some(group.trim_end().trim_end_matches('}'))),
        None => (item.split(" as ").next().unwrap_or(item), None),
    };
    let names = path.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    let whole: Vec<String> = prefix.iter().cloned().chain(names).collect();
    let Some(group) = group else { return found.push(whole) };
    let (mut depth, mut from) = (0, 0);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&whole, &group[from..at], found);
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// The module of the crate that a path in `module` leads to, if it is another one than that.
fn resolve(module: &Module, path: &[String], modules: &BTreeMap<Module, &Source>) -> Option<Module> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    let mut whole: Module = match path.first()?.as_str() {
        "crate" => path[1..].to_vec(),
        "super" => [&module[..module.len().checked_sub(supers)?], &path[supers..]].concat(),
        "self" => [module, &path[1..]].concat(),
        _ => [module, path].concat(),
    };
    while !modules.contains_key(&whole) {
        whole.pop()?;
    }
    (whole != *module && !whole.is_empty()).then_some(whole)
}

/// Sets of more than one module that can all reach each other.
fn cycles(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        imports.keys().map(|from| (from, reach(from, imports))).collect();
    let mut found = BTreeSet::new();
    for (from, to) in &reached {
        let both = to.iter().filter(|other| reached.get(*other).is_some_and(|back| back.contains(from)));
        let cycle: BTreeSet<Module> = both.map(|module| (*module).clone()).collect();
        if cycle.len() > 1 {
            found.insert(cycle.into_iter().collect());
        }
    }
    found.into_iter().collect()
}

fn reach<'a>(from: &'a Module, imports: &'a BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        for to in imports.get(module).into_iter().flatten() {
            if reached.insert(to) {
                next.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(name, text): &(&str, &str)| {
            let path = if name.contains('/') { (*name).to_owned() } else { format!("crates/a/src/{name}.rs") };
            Source { path, text: (*text).to_owned() }
        };
        let sources: Vec<Source> = files.iter().map(source).collect();
        let mut findings = Vec::new();
        check(&sources, &mut findings);
        findings.into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn a_cycle_of_more_than_three_files_is_found_whichever_way_it_is_written() {
        let files = [
            ("lib", "mod b; mod c; mod d; use b::B;"),
            ("b", "use crate::{c::{self, C}, x};\nmod inner;"),
            ("c", "fn f() -> crate::d::D { todo() }"),
            ("d", "pub use crate::b::inner::Inner as Other;"),
            ("crates/a/src/b/inner.rs", "use super::B;"),
        ];
        assert_eq!(found(&files), ["an import cycle of 4 files: b, b::inner, c, d"]);
    }

    #[test]
    fn tests_comments_and_small_cycles_are_none() {
        let files = [
            ("b", "use crate::c::C; // crate::d::D\n"),
            ("c", "use crate::d::D;"),
            ("d", "use crate::b::B;\n#[cfg(test)]\nmod tests {\n    use crate::e::E;\n}\n"),
            ("e", "use crate::b::B; use std::fmt;\npub(in crate::d) fn f() {}"),
        ];
        assert!(found(&files).is_empty());
    }
}
