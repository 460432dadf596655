//! Names as they are shown, and renames that are refused.

use super::Ground;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

#[test]
fn json_has_the_true_name() {
    let ground = Ground::new("json-names");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let odd = "e2e:/a\"b\n\u{1b}ß";
    std::fs::write(ground.path("word"), "hello").expect("written");
    ground.weft(&["cp", "-q", "word", odd]);
    for verb in ["stat", "locate"] {
        let answer = ground.json(&[verb, "--json", odd]);
        assert_eq!((answer[0]["path"].as_str(), answer[0]["path_hex"].is_null()), (Some(odd), true), "{verb}");
        // Bytes that are no text.
        let mut command = ground.command(&["cp", "-q", "word"]);
        let name = OsStr::from_bytes(b"e2e:/a\xff");
        assert!(command.arg(name).status().expect("weft starts").success());
        let output = ground.command(&[verb, "--json"]).arg(name).output().expect("weft starts");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(answer[0]["path"].as_str(), Some("e2e:/a\u{fffd}"), "{verb}");
        assert_eq!(answer[0]["path_hex"].as_str(), Some("6532653a2f61ff"), "{verb}");
    }
}

#[test]
fn a_directory_is_not_moved_into_itself_and_the_reason_is_said() {
    // With several nodes the directories may be on different shards.
    for nodes in ["1", "4"] {
        let ground = Ground::new(&format!("mv-below-{nodes}"));
        ground.weft(&["up", "e2e", "--nodes", nodes]);
        ground.weft(&["mkdir", "-p", "e2e:/d/inner/deep"]);
        for target in ["e2e:/d/e", "e2e:/d/inner/e", "e2e:/d/inner/deep", "e2e:/d"] {
            let said = ground.weft_fails(2, &["mv", "e2e:/d", target]);
            let reason = said.starts_with("weft: mv e2e:/d to e2e:/d/") && said.contains("a directory into itself");
            assert!(reason && said.contains("remedy:"), "{nodes} {target}: {said}");
        }
        assert_eq!(ground.weft(&["ls", "e2e:/d/inner"]), "deep\n");
    }
}
