//! Rust without its comments and literals, so that words and braces can be searched in what is code.

/// The text with comments, strings and characters as blanks. Lines stay where they are.
pub fn only_code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let next = chars.get(at + 1).copied();
        let end = match (c, next) {
            ('/', Some('/')) => find(&chars, at, |rest| rest[0] == '\n'),
            ('/', Some('*')) => block_comment_end(&chars, at),
            ('"', _) => string_end(&chars, at + 1),
            ('r', Some('"' | '#')) if !continues_a_word(&chars, at) => raw_string_end(&chars, at),
            ('\'', _) => char_end(&chars, at),
            _ => None,
        };
        match end {
            Some(end) => {
                out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
                at = end;
            }
            None => {
                out.push(c);
                at += 1;
            }
        }
    }
    out
}

fn find(chars: &[char], from: usize, is_end: impl Fn(&[char]) -> bool) -> Option<usize> {
    (from..chars.len()).find(|at| is_end(&chars[*at..])).or(Some(chars.len()))
}

fn block_comment_end(chars: &[char], from: usize) -> Option<usize> {
    let (mut at, mut depth) = (from, 0);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                at += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => at += 1,
        }
    }
    Some(chars.len())
}

/// Behind the closing quote of a string whose first character is at `from`.
fn string_end(chars: &[char], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(c) = chars.get(at) {
        match c {
            '\\' => at += 2,
            '"' => return Some(at + 1),
            _ => at += 1,
        }
    }
    Some(chars.len())
}

fn raw_string_end(chars: &[char], from: usize) -> Option<usize> {
    let hashes = chars[from + 1..].iter().take_while(|c| **c == '#').count();
    if chars.get(from + 1 + hashes) != Some(&'"') {
        return None;
    }
    let closing = |rest: &[char]| rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|c| *c == '#');
    find(chars, from + hashes + 2, closing).map(|at| (at + hashes + 1).min(chars.len()))
}

/// A character literal; a lifetime is none.
fn char_end(chars: &[char], from: usize) -> Option<usize> {
    match (chars.get(from + 1)?, chars.get(from + 2)?) {
        ('\\', _) => (from + 3..chars.len().min(from + 14)).find(|at| chars[*at] == '\'').map(|at| at + 1),
        (_, '\'') => Some(from + 3),
        _ => None,
    }
}

/// Whether the `r` at this place is not the beginning of a literal: `r"` and `br"` are.
fn continues_a_word(chars: &[char], at: usize) -> bool {
    let is_letter = |at: usize| chars.get(at).is_some_and(|c| c.is_alphanumeric() || *c == '_');
    let begin = if at > 0 && chars.get(at - 1) == Some(&'b') { at - 1 } else { at };
    begin > 0 && is_letter(begin - 1)
}

/// For each line of code, whether it is inside something that is built for tests only.
pub fn test_lines(code: &str) -> Vec<bool> {
    let lines: Vec<&str> = code.lines().collect();
    let mut in_test = vec![false; lines.len()];
    let mut line = 0;
    while line < lines.len() {
        if lines[line].trim_start().starts_with("#[cfg(test)]") {
            let end = item_end(&lines, line);
            in_test[line..=end].fill(true);
            line = end;
        }
        line += 1;
    }
    in_test
}

/// The last line of the item that begins at `first`: where its braces close, or its semicolon stands.
pub fn item_end(lines: &[&str], first: usize) -> usize {
    let mut depth = 0_i32;
    for (line, text) in lines.iter().enumerate().skip(first) {
        for c in text.chars() {
            match c {
                '{' => depth += 1,
                '}' => {
                    depth -= 1;
                    if depth == 0 {
                        return line;
                    }
                }
                ';' if depth == 0 => return line,
                _ => {}
            }
        }
    }
    lines.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanks() {
        for (text, expected) in [
            ("a // b {\nc", "a       \nc"),
            ("a /* b /* c */ } */ d", "a                   d"),
            (r#"f("a } \" {", 'x', '\'', '{')"#, "f(          ,    ,     ,    )"),
            (r###"r#"a " }"# + br"{" + b"###, "+ b + b"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
        ] {
            let code = only_code(text);
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&code), words(expected), "{text}");
            assert_eq!(code.lines().count(), text.lines().count());
        }
    }

    #[test]
    fn test_modules_are_found() {
        let code =
            "fn a() {\n}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n#[cfg(test)]\nmod more;\nfn d() {}";
        let in_test = test_lines(code);
        assert_eq!(in_test, [false, false, true, true, true, true, false, true, true, false]);
    }
}
