fn main() {
    println!("cargo:rustc-check-cfg=cfg(fuser_mount_impl, values(\"pure-rust\", \"libfuse2\", \"libfuse3\", \"macos-no-mount\"))");
    println!("cargo:rustc-check-cfg=cfg(feature, values(\"experimental\", \"serializable\", \"macfuse-4-compat\", \"macos-no-mount\", \"libfuse\", \"libfuse2\", \"libfuse3\"))");
    println!("cargo:rustc-cfg=fuser_mount_impl=\"pure-rust\"");
}
