//! SPDX licence expressions: read, and asked whether a set of licences will do.
//!
//! Covers what crates write in `license`: `OR`, `AND` (which binds tighter),
//! `WITH`, parentheses, and the old `MIT/Apache-2.0`, where the slash is `OR`.
//! A licence is compared as a whole with its exception; `Apache-2.0+` is not
//! `Apache-2.0`. What cannot be read is an error and never a yes.

/// How deep parentheses may nest: no crate needs three, and the parser recurses.
const DEPTH_MAX: usize = 16;

#[derive(Debug, PartialEq, Eq)]
pub enum Expression {
    /// `ID` or `ID WITH EXCEPTION`, as it is written in an allow-list.
    Licence(String),
    Any(Vec<Expression>),
    All(Vec<Expression>),
}

impl Expression {
    pub fn parse(text: &str) -> Result<Self, String> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let mut tokens = Tokens { rest: spaced.split_whitespace().collect(), depth: 0 };
        tokens.rest.reverse();
        let expression = tokens.any()?;
        match tokens.rest.pop() {
            None => Ok(expression),
            Some(token) => Err(format!("`{token}` where the expression should end")),
        }
    }

    pub fn is_satisfied_by(&self, allowed: &[&str]) -> bool {
        match self {
            Self::Licence(name) => allowed.contains(&name.as_str()),
            Self::Any(choices) => choices.iter().any(|it| it.is_satisfied_by(allowed)),
            Self::All(parts) => parts.iter().all(|it| it.is_satisfied_by(allowed)),
        }
    }
}

/// The words not yet read, the next one last.
struct Tokens<'a> {
    rest: Vec<&'a str>,
    depth: usize,
}

impl Tokens<'_> {
    fn any(&mut self) -> Result<Expression, String> {
        let mut choices = vec![self.all()?];
        while self.skip("OR") {
            choices.push(self.all()?);
        }
        Ok(alone_or(choices, Expression::Any))
    }

    fn all(&mut self) -> Result<Expression, String> {
        let mut parts = vec![self.one()?];
        while self.skip("AND") {
            parts.push(self.one()?);
        }
        Ok(alone_or(parts, Expression::All))
    }

    fn one(&mut self) -> Result<Expression, String> {
        if self.skip("(") {
            return self.group();
        }
        let licence = self.name()?;
        if self.skip("WITH") {
            let exception = self.name()?;
            return Ok(Expression::Licence(format!("{licence} WITH {exception}")));
        }
        Ok(Expression::Licence(licence))
    }

    fn group(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} parentheses in each other"));
        }
        let inner = self.any()?;
        self.depth -= 1;
        if self.skip(")") { Ok(inner) } else { Err("a parenthesis is not closed".into()) }
    }

    fn name(&mut self) -> Result<String, String> {
        match self.rest.pop() {
            None => Err("the expression ends where a name should be".into()),
            Some(token @ ("OR" | "AND" | "WITH" | "(" | ")")) => {
                Err(format!("`{token}` where a name should be"))
            }
            Some(token) => Ok(token.to_owned()),
        }
    }

    fn skip(&mut self, token: &str) -> bool {
        let next = self.rest.pop_if(|it| *it == token);
        next.is_some()
    }
}

fn alone_or(
    mut parts: Vec<Expression>,
    join: impl FnOnce(Vec<Expression>) -> Expression,
) -> Expression {
    match parts.len() {
        1 => parts.remove(0),
        _ => join(parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: [&str; 3] = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];

    fn allowed(text: &str) -> bool {
        Expression::parse(text).unwrap().is_satisfied_by(&ALLOWED)
    }

    #[test]
    fn one_licence_is_its_own_answer() {
        assert!(allowed("MIT"));
        assert!(!allowed("MPL-2.0"));
    }

    #[test]
    fn or_needs_one_and_needs_all() {
        assert!(allowed("GPL-2.0-only OR MIT"));
        assert!(!allowed("GPL-2.0-only OR MPL-2.0"));
        assert!(allowed("MIT AND Apache-2.0"));
        assert!(!allowed("MIT AND Unicode-DFS-2016"));
    }

    #[test]
    fn and_binds_tighter_than_or() {
        assert!(allowed("MIT OR GPL-2.0-only AND MPL-2.0"));
        assert!(!allowed("(MIT OR GPL-2.0-only) AND MPL-2.0"));
        assert!(!allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
    }

    #[test]
    fn an_exception_makes_another_licence() {
        assert!(allowed("Apache-2.0 WITH LLVM-exception"));
        assert!(!allowed("MIT WITH LLVM-exception"));
        assert!(allowed("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT"));
    }

    #[test]
    fn the_old_slash_is_or() {
        assert!(allowed("MPL-2.0/MIT"));
        assert!(allowed("MPL-2.0 / MIT"));
    }

    #[test]
    fn or_later_is_not_the_licence_itself() {
        assert!(!allowed("Apache-2.0+"));
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let deep = format!("{}MIT{}", "(".repeat(40), ")".repeat(40));
        let broken = [
            "",
            "OR",
            "MIT OR",
            "AND MIT",
            "MIT ISC",
            "(MIT",
            "MIT)",
            "()",
            "MIT WITH",
            "MIT or ISC",
            "WITH MIT",
            &deep,
        ];
        for text in broken {
            assert!(Expression::parse(text).is_err(), "{text:?} was read");
        }
    }
}
