//! Finds the shortest history that still fails, by leaving out steps (delta debugging, Zeller
//! 1999).

/// Leaves items out, many at once first, as long as the rest still fails. What it
/// returns fails, and no single item of it can be left out.
pub fn shrunk<T: Clone>(items: &[T], mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut items = items.to_vec();
    let mut chunk = items.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let before = items.len();
        while at < items.len() {
            let end = (at + chunk).min(items.len());
            let rest = [&items[..at], &items[end..]].concat();
            if fails(&rest) { items = rest } else { at = end }
        }
        if chunk == 1 && items.len() == before {
            return items;
        }
        chunk = chunk.div_ceil(2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinking_keeps_only_the_steps_that_make_a_history_fail() {
        let items: Vec<u32> = (0..100).collect();
        let mut tries = 0;
        // It fails when 70 comes some time after 13.
        let fails = |rest: &[u32]| {
            tries += 1;
            let first = rest.iter().position(|it| *it == 13);
            let then = rest.iter().position(|it| *it == 70);
            first.zip(then).is_some_and(|(first, then)| first < then)
        };
        assert_eq!(shrunk(&items, fails), [13, 70]);
        assert!(tries < 100, "{tries} tries");
    }

    #[test]
    fn shrinking_removes_all_steps_or_none_when_all_or_none_matter() {
        assert_eq!(shrunk(&[1, 2, 3], |_| true), [] as [i32; 0]);
        assert_eq!(shrunk(&[1, 2, 3], |rest| rest.len() == 3), [1, 2, 3]);
    }
}
