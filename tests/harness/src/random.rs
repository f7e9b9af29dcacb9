//! Repeatable random choices: all of them follow from one number, which a failed test prints.

use std::time::{SystemTime, UNIX_EPOCH};

/// The generator "SplitMix64": small, and every seed is as good as another.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    pub fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 on that is less than `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "there is no number below 0");
        self.number() % end
    }

    /// Returns true once in `times` calls on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let count = u64::try_from(from.len()).expect("a slice has a length");
        let index = usize::try_from(self.below(count)).expect("it is below the length");
        &from[index]
    }
}

/// The number in this environment variable, for a test that is run again or longer.
#[track_caller]
pub fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|error| panic!("{variable} is {text:?}: {error}")))
}

/// The seed in this environment variable, or a fresh one; a test that fails shows it.
#[expect(clippy::print_stderr, reason = "a failed test shows it")]
pub fn shown_seed(variable: &str) -> u64 {
    let seed = number_in(variable).unwrap_or_else(fresh_seed);
    eprintln!("again with {variable}={seed}");
    seed
}

/// A new seed.
pub fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.expect("it is later than 1970");
    // Short enough to be typed again.
    Random::seeded(since.as_secs() ^ u64::from(since.subsec_nanos())).below(1 << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_makes_the_same_choices_twice_and_another_makes_others() {
        let choices = |seed| {
            let mut random = Random::seeded(seed);
            (0..64).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(choices(7), choices(7));
        assert_ne!(choices(7), choices(8));
    }

    #[test]
    fn every_choice_is_made_sooner_or_later() {
        let mut random = Random::seeded(0);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[*random.pick(&[0, 1, 2, 3, 4])] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
