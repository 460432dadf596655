//! Words that code may not have.

use super::code::{only_code, test_lines};
use super::{Finding, Source};

/// Nowhere.
const NEVER: &[(&str, &str)] = &[
    ("todo!", "do it, or return an error that says that it is not supported"),
    ("unimplemented!", "return an error that says that it is not supported"),
    ("dbg!", "use a log event"),
    ("#[allow(", "use #[expect(lint, reason = \"...\")]"),
    ("#![allow(", "use #![expect(lint, reason = \"...\")]"),
];
/// Not outside tests.
const NOT_IN_PRODUCTION: &[(&str, &str)] = &[(".unwrap()", "handle it, or say with expect() why it cannot fail")];
/// Folders of the fences, which may use `unsafe`.
const FENCES: &[&str] = &["crates/sys/", "crates/ucx/", "fronts/c/", "fronts/library/", "fronts/python/"];

/// Checks one file.
pub fn check(source: &Source, findings: &mut Vec<Finding>) {
    let code = only_code(&source.text);
    let in_test = test_lines(&code);
    let fenced = FENCES.iter().any(|fence| source.path.starts_with(fence));
    for (number, line) in code.lines().enumerate() {
        let is_test = source.is_test() || in_test.get(number).copied().unwrap_or(false);
        let production: &[_] = if is_test { &[] } else { NOT_IN_PRODUCTION };
        for (word, remedy) in NEVER.iter().chain(production) {
            if has_word(line, word) {
                findings.push(Finding::new(&source.path, number + 1, format!("`{word}`: {remedy}")));
            }
        }
        if !fenced && has_word(line, "unsafe") {
            findings.push(Finding::new(&source.path, number + 1, "`unsafe` outside the fences"));
        }
    }
}

/// Whether the line has the word, not as a part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().filter(|_| word.starts_with(is_letter));
        let after = line[at + word.len()..].chars().next().filter(|_| word.ends_with(is_letter));
        !before.is_some_and(is_letter) && !after.is_some_and(is_letter)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let mut findings = Vec::new();
        check(&Source { path: path.to_owned(), text: text.to_owned() }, &mut findings);
        findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn words_in_code_are_found_and_words_in_texts_are_not() {
        let text =
            "f().unwrap();\n// x.unwrap() todo!\ng(\"dbg!\");\nunsafe {}\nunsafe_code();\ntodo!()\n#[allow(dead_code)]";
        assert_eq!(lines("crates/a/src/b.rs", text), [1, 4, 6, 7]);
        assert_eq!(lines("crates/a/tests/b.rs", text), [4, 6, 7]);
        assert_eq!(lines("crates/a/src/b.rs", "#[cfg(test)]\nmod tests {\n x.unwrap();\n}\nx.unwrap();"), [5]);
    }
}
