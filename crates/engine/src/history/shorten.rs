//! Makes the sources of a history shorter, so that they fit into a line.

use crate::history::steps::{Sources, TEXT_CHARS_MAX, cut};
use crate::receipt::Receipt;
use crate::record::lines::Line;
use crate::spec::Spec;
use crate::spec::name::RUN_LABEL;

impl Sources {
    /// Drops what a history can do without: first the details of the request, then the beginning of
    /// stderr, the middle of the lines and events, and the names of objects in the receipt, which
    /// counts them too. Returns false if nothing is left to drop.
    pub fn shorten(&mut self) -> bool {
        let mut is_shorter = false;
        for line in &mut self.lines {
            if let Line::Ended(ended) = line
                && let Some(failure) = &mut ended.failure
            {
                let short = cut(failure, TEXT_CHARS_MAX).to_owned();
                is_shorter |= *failure != short;
                *failure = short;
            }
            let spec = if let Line::Created(created) = line {
                created.cgroup_roots.clear();
                &mut created.spec
            } else if let Line::Claimed(claimed) = line {
                &mut claimed.spec
            } else {
                continue;
            };
            let short = in_short(spec);
            is_shorter |= *spec != short;
            *spec = short;
        }
        if is_shorter || self.stderr.as_mut().is_some_and(drop_first_half) {
            return true;
        }
        let lines = drop_middle(&mut self.lines);
        self.dropped = self.dropped.saturating_add(lines);
        lines + drop_middle(&mut self.events) > 0
            || self.receipt.as_mut().is_some_and(Receipt::drop_names)
    }
}

/// Drops the first half of a text that is longer than a line. Returns false if it is not.
fn drop_first_half(text: &mut String) -> bool {
    let half = text.chars().count() / 2;
    let is_long = half > TEXT_CHARS_MAX;
    if is_long {
        *text = text.chars().skip(half).collect();
    }
    is_long
}

/// Drops a quarter of a list from its middle, at least one item. The first and the last stay.
fn drop_middle<T>(list: &mut Vec<T>) -> u64 {
    let count = list.len().saturating_sub(2).min(list.len().div_ceil(4));
    let first = (list.len() - count) / 2;
    list.drain(first..first + count).count() as u64
}

/// What a history needs of a spec.
fn in_short(spec: &Spec) -> Spec {
    let words = spec.command.iter().map(|word| word.to_string_lossy());
    let command = Vec::from_iter(words).join(" ");
    let command = vec![cut(&command, TEXT_CHARS_MAX + 1).into()];
    let label = spec.labels.get_key_value(RUN_LABEL);
    Spec {
        tenant: spec.tenant.clone(),
        name: spec.name.clone(),
        limits: spec.limits.clone(),
        timeout: spec.timeout,
        labels: label.map(|(key, value)| (key.clone(), value.clone())).into_iter().collect(),
        ..Spec::of(command)
    }
}
