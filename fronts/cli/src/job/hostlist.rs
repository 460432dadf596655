//! Slurm's compressed lists of hosts: `n[001-003,7],m-[1-2]x,login`.
//!
//! A list is names separated by commas. A name may have brackets with numbers and ranges of numbers; it stands for a
//! host for each of them, and with several brackets for each combination, the last one changing fastest. A range keeps
//! the width of its first number: `[08-10]` is 08, 09, 10.

/// The hosts of a list, each once, in its order; at most `hosts_max`. An error says what is wrong, and where.
pub fn parse(text: &str, hosts_max: usize) -> Result<Vec<String>, String> {
    let mut hosts: Vec<String> = Vec::new();
    for name in names(text)? {
        let named = expand(name, hosts_max.saturating_add(1))?;
        let too_many = named.len() > hosts_max;
        for host in named {
            check_host(&host)?;
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        if too_many || hosts.len() > hosts_max {
            return Err(format!("names more than {hosts_max} hosts, which is the most that a file system has"));
        }
    }
    Ok(hosts)
}

/// Refuses what is no host, and what ssh would take for an option.
pub fn check_host(host: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && host.chars().all(is_plain) {
        Ok(())
    } else {
        Err(format!("\"{}\" is not the name of a host", host.escape_debug()))
    }
}

/// The names of a list, with their brackets.
fn names(text: &str) -> Result<Vec<&str>, String> {
    let (mut names, mut begin, mut open) = (Vec::new(), 0, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'[' if open => return Err(format!("\"{}\" has a bracket in a bracket", text.escape_debug())),
            b']' if !open => return Err(format!("\"{}\" closes a bracket that is not open", text.escape_debug())),
            b'[' | b']' => open = byte == b'[',
            b',' if !open => {
                names.push(&text[begin..index]);
                begin = index + 1;
            }
            _ => {}
        }
    }
    if open {
        return Err(format!("\"{}\" does not close a bracket", text.escape_debug()));
    }
    names.push(&text[begin..]);
    Ok(names)
}

/// The hosts of a name whose brackets match; `hosts_max` of them at most.
fn expand(name: &str, hosts_max: usize) -> Result<Vec<String>, String> {
    let mut hosts = vec![String::new()];
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('[') {
        // The bracket is closed: the list was split by its brackets.
        let (ranges, behind) = after.split_once(']').unwrap_or((after, ""));
        let numbers = numbers(ranges, hosts_max)?;
        let longer = |host: &String| numbers.iter().map(|number| format!("{host}{before}{number}")).collect::<Vec<_>>();
        hosts = hosts.iter().flat_map(longer).take(hosts_max).collect();
        rest = behind;
    }
    hosts.iter_mut().for_each(|host| host.push_str(rest));
    Ok(hosts)
}

/// The numbers of a bracket, as they are written; `numbers_max` of them at most.
fn numbers(ranges: &str, numbers_max: usize) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (begin, end) = (number(first, ranges)?, number(last, ranges)?);
        if end < begin {
            return Err(format!("[{}]: {range} ends before it begins", ranges.escape_debug()));
        }
        let (width, room) = (first.len(), numbers_max.saturating_sub(numbers.len()));
        numbers.extend((begin..=end).take(room).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

fn number(text: &str, ranges: &str) -> Result<u64, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| {
        format!("[{}]: \"{}\" is neither a number nor a range like 1-8", ranges.escape_debug(), text.escape_debug())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, hosts: &[&str]) {
        assert_eq!(parse(text, 100).expect(text), hosts, "{text}");
    }

    #[test]
    fn lists_are_expanded_in_their_order() {
        check("n1", &["n1"]);
        check("n1,n2.cluster", &["n1", "n2.cluster"]);
        check("n[001-003,7],m-[1-2]x", &["n001", "n002", "n003", "n7", "m-1x", "m-2x"]);
        check("r[1-2]n[08-10]", &["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]);
        check("a[5],b,a[4-6]", &["a5", "b", "a4", "a6"]);
        check("n[9-11]", &["n9", "n10", "n11"]);
        check("n[0-0]", &["n0"]);
        check("[1-2]x", &["1x", "2x"]);
    }

    #[test]
    fn an_error_says_what_is_wrong() {
        for (text, expected) in [
            ("n[1-2", "does not close a bracket"),
            ("n1]", "closes a bracket that is not open"),
            ("n[1[2]]", "has a bracket in a bracket"),
            ("n[]", "\"\" is neither a number"),
            ("n[1,]", "\"\" is neither a number"),
            ("n[a-b]", "\"a\" is neither a number"),
            ("n[+1]", "\"+1\" is neither a number"),
            ("n[1-2-3]", "\"2-3\" is neither a number"),
            ("n[3-1]", "3-1 ends before it begins"),
            ("n[1-99999999999999999999]", "is neither a number"),
            ("", "\"\" is not the name of a host"),
            ("a,,b", "\"\" is not the name of a host"),
            ("-oProxyCommand=x", "is not the name of a host"),
            ("a b", "\"a b\" is not the name of a host"),
            ("n[1-101]", "more than 100 hosts"),
            ("n[1-100],n[50-150]", "more than 100 hosts"),
            ("n[0-18446744073709551615]", "more than 100 hosts"),
            ("a[1-50]b[1-50]c[1-50]", "more than 100 hosts"),
        ] {
            let error = parse(text, 100).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    /// Numbers that look random and are the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }
    }

    /// A bracket, and what it stands for.
    fn bracket(numbers: &mut Numbers) -> (String, Vec<String>) {
        let (mut words, mut all) = (Vec::new(), Vec::new());
        for _ in 0..=numbers.below(2) {
            let width = usize::try_from(numbers.below(4)).expect("small");
            let begin = numbers.below(120);
            let end = begin + numbers.below(4);
            let text = |number: u64| format!("{number:0width$}");
            let first_width = text(begin).len();
            words.push(if end == begin { text(begin) } else { format!("{}-{}", text(begin), text(end)) });
            all.extend((begin..=end).map(|number| format!("{number:0first_width$}")));
        }
        (format!("[{}]", words.join(",")), all)
    }

    #[test]
    fn what_is_compressed_is_expanded_to_the_same() {
        for seed in 0..2000 {
            let mut numbers = Numbers(seed);
            let (mut words, mut expected) = (Vec::new(), Vec::new());
            for name in 0..=numbers.below(3) {
                let mut word = format!("h{name}x");
                let mut hosts = vec![word.clone()];
                for part in 0..numbers.below(3) {
                    let (text, all) = bracket(&mut numbers);
                    word.push_str(&format!("{text}p{part}"));
                    hosts =
                        hosts.iter().flat_map(|host| all.iter().map(move |n| format!("{host}{n}p{part}"))).collect();
                }
                words.push(word);
                expected.extend(hosts);
            }
            let text = words.join(",");
            let mut seen = std::collections::BTreeSet::new();
            expected.retain(|host| seen.insert(host.clone()));
            assert_eq!(parse(&text, 10_000).expect(&text), expected, "{text}");
        }
    }

    #[test]
    fn no_text_is_too_odd() {
        const ALPHABET: [&str; 12] = ["n", "[", "]", ",", "-", "0", "1", "9", "é", " ", ".", "18446744073709551615"];
        for seed in 0..20_000 {
            let mut numbers = Numbers(seed);
            let count = numbers.below(12);
            let text: String = (0..count)
                .map(|_| ALPHABET[usize::try_from(numbers.below(ALPHABET.len() as u64)).expect("small")])
                .collect();
            match parse(&text, 50) {
                Ok(hosts) => {
                    assert!((1..=50).contains(&hosts.len()), "{text}");
                    assert!(hosts.iter().all(|host| check_host(host).is_ok()), "{text}");
                }
                Err(error) => assert!(!error.is_empty(), "{text}"),
            }
        }
    }
}
