//! `lib.rs` of the main crate and of the kernels lists modules in dependency order: each module uses
//! only those before it. Every file begins with its purpose, and none is a grab bag.

use std::fs;
use std::path::{Path, PathBuf};

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Removes comments, and the tests at the end of a file.
fn code(text: &str) -> String {
    let before_tests = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    before_tests.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the names after every `crate::`, including those in braces.
fn named(code: &str) -> Vec<&str> {
    let first = |text: &'_ str| text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    let mut names = Vec::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{').and_then(|r| r.split_once("};")) {
            Some((inside, _)) => {
                let parts = inside.split([',', '{', '}']).map(str::trim);
                names.extend(parts.map(|part| &part[..first(part)]));
            }
            None => names.push(&rest[..first(rest)]),
        }
    }
    names
}

/// The source folders whose `lib.rs` lists modules in dependency order.
fn layered() -> [PathBuf; 2] {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    [workspace.join("src"), workspace.join("crates/tensorpack-kernels/src")]
}

/// The modules in the order of `lib.rs`.
fn modules(root: &Path) -> Vec<String> {
    let lib = read(&root.join("lib.rs"));
    let name =
        |l: &str| Some(l.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')?.to_string());
    let modules: Vec<String> = lib.lines().filter_map(name).collect();
    assert!(modules.len() >= 8, "{} lists only {modules:?}", root.display());
    modules
}

#[test]
fn each_module_names_only_those_before_it() {
    let mut wrong = Vec::new();
    for root in layered() {
        let modules = modules(&root);
        let mut seen = 0;
        for (i, module) in modules.iter().enumerate() {
            let mut files = Vec::new();
            let (dir, file) = (root.join(module), root.join(format!("{module}.rs")));
            if dir.is_dir() {
                sources(&dir, &mut files)
            } else {
                files.push(file)
            }
            for file in files {
                let text = code(&read(&file));
                for name in named(&text) {
                    seen += usize::from(modules.iter().any(|m| m == name));
                    if modules[i + 1..].iter().any(|m| m == name) {
                        wrong
                            .push(format!("{} names {name}, which is listed after {module}", file.display()));
                    }
                }
            }
        }
        assert!(seen > 50, "only {seen} names were found in {}: the scan does not see them", root.display());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_has_module_documentation() {
    let mut files = Vec::new();
    layered().iter().for_each(|root| sources(root, &mut files));
    let silent: Vec<&PathBuf> = files.iter().filter(|f| !read(f).starts_with("//! ")).collect();
    assert!(silent.is_empty(), "no module documentation in {silent:?}");
}

#[test]
fn no_file_is_a_grab_bag() {
    let mut files = Vec::new();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    for dir in ["src", "tests", "crates", "bench"] {
        sources(&workspace.join(dir), &mut files);
    }
    let parts = |f: &PathBuf| -> Vec<String> {
        let inside = f.strip_prefix(workspace).unwrap_or(f).with_extension("");
        inside.iter().map(|p| p.to_string_lossy().into_owned()).collect()
    };
    let grab_bags = ["util", "utils", "helper", "helpers", "common", "misc", "base"];
    let bad: Vec<&PathBuf> =
        files.iter().filter(|f| parts(f).iter().any(|p| grab_bags.contains(&p.as_str()))).collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert!(files.len() > 50, "only {} files were found", files.len());
}

#[test]
fn the_kernel_ir_names_no_cpu_kernel() {
    // The IR shares scalar expressions with the CPU kernels. Loops, layouts and algorithms belong to the engines.
    let allowed = ["ReduceKind", "expr"];
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kir"), &mut files);
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for file in files {
        let text = code(&read(&file)).replace("tensorpack_kernels", "crate");
        for name in named(&text.replace("crate::kir", "")).into_iter().filter(|n| !n.is_empty()) {
            seen += 1;
            if !allowed.contains(&name) {
                wrong.push(format!("{} names {name}", file.display()));
            }
        }
        if text.contains("crate as") {
            wrong.push(format!("{} renames the crate of CPU kernels", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen >= 2, "only {seen} names were found: the scan does not see them");
}

#[test]
fn names_are_found_in_every_form_of_use() {
    let text = code(
        "use crate::{graph::{Graph, Tensor}, kir};\nlet x = crate::ops::f(); // crate::nn\nuse crate::tower;",
    );
    let names = named(&text);
    for name in ["graph", "kir", "ops", "tower"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    assert!(!names.contains(&"nn"));
}
