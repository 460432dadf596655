//! The workspace is tidy: `make tidy` as a test.

#[test]
fn the_workspace_is_tidy() {
    let findings = weft_xtask::tidy::run().expect("the workspace can be read");
    let text: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} findings\n{}", findings.len(), text.join("\n"));
}
