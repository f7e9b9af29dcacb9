//! Checks that the map of the code, ARCHITECTURE.md, agrees with the code: the row of each folder
//! has the sentences that open the folder, every other file has a name on the map, also in crates
//! whose row names all of their parts, and the table of dependencies names each of them.

use super::Finding;
use super::source::Source;
use std::path::Path;

/// The crates whose folders have rows. The row of any other crate names its folders and files.
const CRATES: [&str; 4] = ["engine", "keeper", "server", "cli"];
const DEPENDENCIES: &str = "## Dependencies";
/// How the paragraph begins that names the files without a row.
const OTHERS: &str = "Other files.";

pub fn check(path: &str, text: &str, sources: &[Source]) -> Vec<Finding> {
    let finding = |line, what| Finding { path: path.into(), line, what };
    let mut found = Vec::new();
    let others = text.split("\n\n").find(|paragraph| paragraph.starts_with(OTHERS)).unwrap_or("");
    for source in sources {
        if let Some(folder) = folder(&source.path)
            && !rows(text).any(|(_, name, _)| name == folder)
        {
            found.push(finding(1, format!("there is no row for {folder}")));
        }
        if let Some((of_crate, part)) = part_of_small_crate(&source.path)
            && !text.lines().any(|line| {
                line.starts_with(&format!("| `{of_crate}` |"))
                    && line.contains(&format!("`{part}`"))
            })
        {
            found.push(finding(1, format!("the row of {of_crate} does not name {part}")));
        }
        if let Some(name) = single_file(&source.path)
            && !rows(text).any(|(_, row, _)| opens(&source.path, row))
            && !others.contains(&format!("`{name}`"))
        {
            found.push(finding(1, format!("\"{OTHERS}\" does not name {name}")));
        }
    }
    for (line, name, said) in rows(text) {
        match sources.iter().find(|source| opens(&source.path, name)) {
            Some(source) if opening(source) == said => {}
            Some(source) => {
                found.push(finding(line, format!("{name} opens with: {}", opening(source))));
            }
            None => found.push(finding(line, format!("there is no {name}"))),
        }
    }
    found
}

/// Compares the table of dependencies with those of the workspace's manifest.
pub fn check_dependencies(path: &str, text: &str, manifest: &str) -> Vec<Finding> {
    let section = manifest.lines().skip_while(|line| *line != "[workspace.dependencies]").skip(1);
    let section = section.take_while(|line| !line.starts_with('['));
    let names = section.filter_map(|line| line.split_once(" = ").map(|(name, _)| name));
    let used: Vec<&str> = names.filter(|name| !name.starts_with("tare-")).collect();
    let table = text.lines().skip_while(|line| *line != DEPENDENCIES);
    let cells = table.filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let named: Vec<&str> = cells.flat_map(|cell| cell.split(", ")).collect();
    let finding = |what| Finding { path: path.into(), line: 1, what };
    let unnamed = used.iter().filter(|name| !named.contains(name));
    unnamed.map(|name| finding(format!("the table of dependencies does not name {name}"))).collect()
}

/// `engine/spec/` of `crates/engine/src/spec/mod.rs`. A folder in it may have a row.
fn folder(path: &Path) -> Option<String> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    match parts.as_slice() {
        ["crates", name, "src", folder, "mod.rs"] if CRATES.contains(name) => {
            Some(format!("{name}/{folder}/"))
        }
        _ => None,
    }
}

/// `time` of `crates/engine/src/time.rs`. The first file of a crate is its own.
fn single_file(path: &Path) -> Option<&str> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    match parts.as_slice() {
        ["crates", name, "src", file] if CRATES.contains(name) => {
            file.strip_suffix(".rs").filter(|file| !matches!(*file, "lib" | "main"))
        }
        _ => None,
    }
}

/// `kernel` and `procfs` of each file in `crates/kernel/src/procfs`.
fn part_of_small_crate(path: &Path) -> Option<(&str, &str)> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    match parts.as_slice() {
        ["crates", name, "src", part, ..] if !CRATES.contains(name) => {
            let part = part.strip_suffix(".rs").unwrap_or(part);
            let is_named = !matches!(part, "lib" | "main") && !part.ends_with("_tests");
            is_named.then_some((name, part))
        }
        _ => None,
    }
}

/// Whether this is the file that opens a folder, or the file of the row itself.
fn opens(path: &Path, name: &str) -> bool {
    let Some((of_crate, inside)) = name.split_once('/') else { return false };
    let inside = if inside.ends_with('/') { format!("{inside}mod.rs") } else { inside.to_owned() };
    path == Path::new("crates").join(of_crate).join("src").join(inside)
}

/// The rows of folders and files: line, name and sentences.
fn rows(text: &str) -> impl Iterator<Item = (usize, &str, &str)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let (name, said) = line.strip_prefix("| `")?.split_once("` | ")?;
        let is_place = name.split_once('/').is_some_and(|(first, _)| CRATES.contains(&first));
        is_place.then_some((index + 1, name, said.strip_suffix(" |")?))
    })
}

/// The first paragraph of a file, without links.
fn opening(source: &Source) -> String {
    let lines = source.text.lines().map_while(|line| line.strip_prefix("//! "));
    lines.collect::<Vec<_>>().join(" ").replace("[`", "`").replace("`]", "`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_sentences_that_open_its_folder() {
        let spec = Source::new(
            "crates/engine/src/spec/mod.rs",
            "//! A [`Spec`],\n//! checked.\n//!\n//! More.",
        );
        let gauge = Source::new("crates/engine/src/gauge/mod.rs", "//! Gauges.\n");
        let sources = [spec, gauge];
        let check = |text: &str| check("map", text, &sources).len();
        let right = "| `engine/spec/` | A `Spec`, checked. |\n| `engine/gauge/` | Gauges. |\n";
        assert_eq!(check(right), 0);
        assert_eq!(check(&right.replace("checked", "unchecked")), 1);
        assert_eq!(check("| `engine/gauge/` | Gauges. |"), 1);
        assert_eq!(check(&format!("{right}| `engine/gone/` | Gone. |")), 1);
    }

    #[test]
    fn every_file_without_a_row_is_named() {
        let sources = [Source::new("crates/cli/src/hint.rs", "//! Hints.\n")];
        assert_eq!(check("map", "A map.\n\nOther files. cli: `hint`.\n", &sources).len(), 0);
        assert_eq!(check("map", "| `cli/hint.rs` | Hints. |\n", &sources).len(), 0);
        assert_eq!(check("map", "`hint`\n\nOther files.\n", &sources).len(), 1);
    }

    #[test]
    fn the_row_of_a_crate_without_rows_for_folders_names_all_of_its_parts() {
        let path = |inside: &str| format!("crates/kernel/src/{inside}");
        let sources =
            ["lib.rs", "clock.rs", "procfs/mod.rs"].map(|it| Source::new(path(it), "//! x\n"));
        let check = |text: &str| check("map", text, &sources).len();
        assert_eq!(check("| `kernel` | calls: `clock`, `procfs` |\n"), 0);
        assert_eq!(check("| `kernel` | calls: `clock` |\n| `engine` | `procfs` |\n"), 1);
    }

    #[test]
    fn every_dependency_is_in_the_table() {
        let manifest =
            "[workspace.dependencies]\ntare-engine = 1\nrustix = 1\ntoml = 1\n[lints]\nall = 1\n";
        let check = |text: &str| check_dependencies("map", text, manifest).len();
        assert_eq!(check("## Dependencies\n| rustix, libc | why |\n| toml | why |\n"), 0);
        assert_eq!(check("## Dependencies\n| rustix, libc | why |\n"), 1);
    }
}
