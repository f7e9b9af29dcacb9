//! Box ids.

/// Twelve characters of `[a-z2-7]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BoxId(String);

impl BoxId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for BoxId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
