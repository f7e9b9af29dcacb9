//! `bench report`: writes the tables of docs/performance.md and the plots beside it, from the JSON
//! that benches have saved.
//!
//! The page has a place for each question, between `<!-- bench python -->` and
//! `<!-- end of bench -->`. The text around the places belongs to its authors.

use super::answer::Answer;
use super::svg;
use crate::failure::{Context, Failure};
use crate::workspace::Workspace;
use std::fs;
use std::path::Path;

const PAGE: &str = "performance.md";
const END: &str = "<!-- end of bench -->";

pub fn write(workspace: &Workspace, saved: &Path) -> Result<(), Failure> {
    let docs = workspace.workspace_root.join("docs");
    let page = docs.join(PAGE);
    let mut text =
        fs::read_to_string(&page).context(|| format!("cannot read {}", page.display()))?;
    let entries = fs::read_dir(saved);
    let entries =
        entries.context(|| format!("no bench has saved anything in {}", saved.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|it| it.path()).collect();
    files.retain(|it| it.extension().is_some_and(|it| it == "json"));
    files.sort();
    for file in files {
        let answer = Answer::load(&file)?;
        text = with_answer(&text, &answer)?;
        let plot = docs.join(plot_name(&answer));
        fs::write(&plot, svg::draw(&answer))
            .context(|| format!("cannot write {}", plot.display()))?;
        println!("{}: {}", answer.question, plot.display());
    }
    fs::write(&page, text).context(|| format!("cannot write {}", page.display()))?;
    println!("written: {}", page.display());
    Ok(())
}

fn plot_name(answer: &Answer) -> String {
    format!("performance-{}.svg", answer.question)
}

/// Replaces what the page says about a question.
fn with_answer(page: &str, answer: &Answer) -> Result<String, Failure> {
    let begin = format!("<!-- bench {} -->\n", answer.question);
    let missing = |what: &str| Failure::new(format!("docs/{PAGE} has no line {what}"));
    let (before, rest) = page.split_once(&begin).ok_or_else(|| missing(begin.trim()))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| missing(END))?;
    let plot = plot_name(answer);
    let picture = format!("![{}]({plot})", answer.question);
    Ok(format!("{before}{begin}\n{}\n{picture}\n\n{END}{after}", answer.markdown()))
}

#[cfg(test)]
mod tests {
    use super::super::answer::Machine;
    use super::*;

    #[test]
    fn an_answer_replaces_its_own_place_only() {
        let answer =
            Answer { question: "numpy".into(), machine: Machine::observe(), tables: Vec::new() };
        let page = format!(
            "a\n<!-- bench python -->\nold\n{END}\nb\n<!-- bench numpy -->\nold\n{END}\nc\n"
        );
        let once = with_answer(&page, &answer).unwrap();
        assert!(once.starts_with("a\n<!-- bench python -->\nold\n<!-- end"), "{once}");
        assert!(once.contains("![numpy](performance-numpy.svg)"), "{once}");
        assert!(once.ends_with("<!-- end of bench -->\nc\n"), "{once}");
        assert_eq!(once.matches("old").count(), 1);
        assert_eq!(with_answer(&once, &answer).unwrap(), once, "twice is once");
    }

    #[test]
    fn a_page_without_the_place_is_named() {
        let answer =
            Answer { question: "heap".into(), machine: Machine::observe(), tables: Vec::new() };
        let failure = with_answer("nothing", &answer).unwrap_err().to_string();
        assert_eq!(failure, "docs/performance.md has no line <!-- bench heap -->");
    }
}
