//! Lengths of lines, files and functions.

use super::code::{item_end, only_code};
use super::{Finding, Source};

const LINE_CHARS_MAX: usize = 120;
const FILE_LINES_MAX: usize = 650;
/// Longest function; 70 is what a screen holds.
const FUNCTION_LINES_MAX: usize = 100;

/// Checks one file.
pub fn check(source: &Source, findings: &mut Vec<Finding>) {
    for (number, line) in source.text.lines().enumerate() {
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX {
            findings.push(Finding::new(&source.path, number + 1, format!("a line of {chars} characters")));
        }
    }
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX && !source.is_test() {
        findings.push(Finding::new(&source.path, 0, format!("a file of {lines} lines: which two ideas is it?")));
    }
    let code = only_code(&source.text);
    let code: Vec<&str> = code.lines().collect();
    for (first, line) in code.iter().enumerate().filter(|(_, line)| begins_function(line)) {
        let lines = item_end(&code, first) - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let name = line.split("fn ").nth(1).and_then(|rest| rest.split(['(', '<']).next()).unwrap_or_default();
            findings.push(Finding::new(&source.path, first + 1, format!("function `{name}` of {lines} lines")));
        }
    }
}

fn begins_function(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_modifier = |word: &str| {
        word.starts_with("pub") || matches!(word, "in" | "const" | "async" | "unsafe" | "extern") || word.ends_with(')')
    };
    words.find(|word| !is_modifier(word)) == Some("fn")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        let source = Source { path: "crates/a/src/b.rs".to_owned(), text: text.to_owned() };
        let mut findings = Vec::new();
        check(&source, &mut findings);
        findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn long_lines_files_and_functions_are_found() {
        let body = "    x();\n".repeat(99);
        assert!(found(&format!("fn short() {{\n{}}}\n", "    x();\n".repeat(98))).is_empty());
        let long = format!("\npub(in crate::a) const fn long<T>() {{\n{body}    {{ }}\n}}\n");
        assert_eq!(found(&long), [2]);
        assert_eq!(found(&format!("// {}", "x".repeat(118))), [1]);
        assert_eq!(found(&"\n".repeat(651)), [0]);
    }
}
