//! Cycles between files: no two files of a crate use each other, directly or through others.
//!
//! `lib.rs` and `main.rs` may use all files, and no file may use them (`arrows`). The head of a folder,
//! its `mod.rs` or the file with the folder's name, may use the files in the folder, and they may use
//! it. So an import of the own head is not counted here.

use super::Finding;
use super::imports::{Import, imports, is_test_file, module_of};
use super::source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A file as a module of its crate.
type Module = Vec<String>;

/// The files of one crate, each with its imports of the others.
type Graph<'a> = BTreeMap<Module, (&'a Source, Vec<Import>)>;

/// Finds one cycle through each file that is in any, and names each cycle once.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&Path, Graph<'_>> = BTreeMap::new();
    for source in sources {
        let src = source.path.ancestors().find(|it| it.ends_with("src"));
        let Some((src, inside)) = src.and_then(|src| Some((src, inside(source, src)?))) else {
            continue;
        };
        let module = module_of(inside);
        let imports = imports(source, &module);
        crates.entry(src).or_default().insert(module, (source, imports));
    }
    crates.values().flat_map(cycles).collect()
}

/// The path of a file that takes part, below the folder of the sources.
fn inside<'a>(source: &'a Source, src: &Path) -> Option<&'a Path> {
    let inside = source.path.strip_prefix(src).ok()?;
    let is_root = matches!(inside.to_str(), Some("lib.rs" | "main.rs"));
    (!is_root && !is_test_file(inside)).then_some(inside)
}

fn cycles(graph: &Graph<'_>) -> Vec<Finding> {
    let mut in_a_known_cycle = BTreeSet::new();
    let mut found = Vec::new();
    for (start, (source, _)) in graph {
        let Some(cycle) = cycle_through(start, graph) else { continue };
        if cycle.iter().any(|(module, _)| in_a_known_cycle.contains(module)) {
            continue;
        }
        let names: Vec<String> = cycle.iter().map(|(module, _)| module.join("/")).collect();
        let what = format!(
            "files use each other: {} -> {}: move what they share to a file of its own",
            names.join(" -> "),
            names[0]
        );
        found.push(Finding { path: source.path.clone(), line: cycle[0].1, what });
        in_a_known_cycle.extend(cycle.into_iter().map(|(module, _)| module));
    }
    found
}

/// The shortest way from a file back to itself: its files, each with the line of its import of the
/// next one.
fn cycle_through(start: &Module, graph: &Graph<'_>) -> Option<Vec<(Module, usize)>> {
    let mut ways = vec![vec![(start.clone(), 0)]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let (last, _) = way.last().expect("a way begins with its start");
            for (next, line) in used_by(last, graph) {
                let mut way = way.clone();
                way.last_mut().expect("a way begins with its start").1 = line;
                if next == *start {
                    return Some(way);
                }
                if seen.insert(next.clone()) {
                    way.push((next, 0));
                    longer.push(way);
                }
            }
        }
        ways = longer;
    }
    None
}

/// The files that a file uses, except the heads of its own folders.
fn used_by(module: &Module, graph: &Graph<'_>) -> Vec<(Module, usize)> {
    let (_, imports) = &graph[module];
    let file = |import: &Import| {
        let lengths = (1..=import.path.len()).rev();
        let file =
            lengths.map(|length| &import.path[..length]).find(|it| graph.contains_key(*it))?;
        (!module.starts_with(file)).then(|| (file.to_vec(), import.line))
    };
    imports.iter().filter_map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source =
            |(path, text): &(&str, &str)| Source::new(format!("crates/a/src/{path}"), *text);
        let sources: Vec<Source> = files.iter().map(source).collect();
        check(&sources).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_cycle_is_named_once_with_its_files() {
        let files = [
            ("one.rs", "//! x\nuse crate::two::B;"),
            ("two.rs", "use crate::deep::three::C;"),
            ("deep/three.rs", "use super::super::one::A;"),
            ("four.rs", "use crate::one::A;"),
        ];
        let [cycle] = &found(&files)[..] else { panic!("{:?}", found(&files)) };
        assert!(cycle.starts_with("crates/a/src/deep/three.rs:1: "), "{cycle}");
        assert!(cycle.contains("deep/three -> one -> two -> deep/three"), "{cycle}");
        assert_eq!(found(&files[..2]), [""; 0]);
    }

    #[test]
    fn a_file_may_use_the_head_of_its_folder_and_the_head_may_use_the_file() {
        let files = [
            ("folder/mod.rs", "use crate::folder::part::B;"),
            ("folder/part.rs", "use crate::folder::A;\nuse super::A;"),
        ];
        assert_eq!(found(&files), [""; 0]);
        let outside = ("other.rs", "use crate::folder::A;");
        let used = ("folder/mod.rs", "use crate::other::C;");
        assert_eq!(found(&[used, outside]).len(), 1);
    }

    #[test]
    fn test_code_and_the_root_of_a_crate_make_no_cycle() {
        let files = [
            ("one.rs", "use crate::two::B;"),
            ("two.rs", "#[cfg(test)]\nmod tests {\n    use crate::one::A;\n}\n"),
            ("two_tests.rs", "use crate::one::A;"),
            ("lib.rs", "use crate::one::A;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }
}
