//! Amounts that all clients share, such as memory or streams, and the part of each key.
//!
//! If there are several keys, one key may hold half of what the others leave: the first key half of
//! all, the next one a quarter, and so on. So a key that comes later finds a part too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::workers::locked;

/// Returns how much one key may hold while the others hold `of_others`.
pub fn share_of_a_key(most: u64, of_others: u64, keys: usize) -> u64 {
    let left = most.saturating_sub(of_others);
    if keys <= 1 { left } else { left.div_ceil(2) }
}

/// An amount that many holders share. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SharedAmount(Arc<Mutex<HeldAmounts>>);

#[derive(Debug, Default)]
struct HeldAmounts {
    all: u64,
    /// The part of each key that holds any.
    of_key: HashMap<String, u64>,
}

/// The part of one holder, until it is dropped.
#[derive(Debug, Default)]
pub struct Share {
    amounts: SharedAmount,
    key: Option<String>,
    /// How many keys share.
    keys: usize,
    amount: u64,
}

/// Why a holder does not get more.
#[derive(Debug, PartialEq, Eq)]
pub enum NoShare {
    /// All holders together have this much.
    Full(u64),
    /// The holder's key may have at most this much now.
    OfKey(u64),
}

impl SharedAmount {
    /// Returns an empty share. The share of a holder without a key is limited only by the total.
    pub fn begin(&self, key: Option<&str>, keys: usize) -> Share {
        Share { amounts: self.clone(), key: key.map(str::to_owned), keys, amount: 0 }
    }

    /// Returns what all holders have.
    pub fn held(&self) -> u64 {
        locked(&self.0).all
    }
}

impl Share {
    /// The most that this holder could ever get of `most`.
    pub fn largest(&self, most: u64) -> u64 {
        if self.key.is_some() { share_of_a_key(most, 0, self.keys) } else { most }
    }

    /// Changes the amount. A smaller one is always granted. If this is refused, the old one stays.
    pub fn resize(&mut self, amount: u64, most: u64) -> Result<(), NoShare> {
        let mut held = locked(&self.amounts.0);
        if amount > self.amount {
            held.check(self, amount - self.amount, most)?;
        }
        held.change(self.key.as_deref(), self.amount, amount);
        self.amount = amount;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        locked(&self.amounts.0).change(self.key.as_deref(), self.amount, 0);
    }
}

impl HeldAmounts {
    fn check(&self, share: &Share, more: u64, most: u64) -> Result<(), NoShare> {
        if self.all.saturating_add(more) > most {
            return Err(NoShare::Full(self.all));
        }
        let Some(key) = &share.key else {
            return Ok(());
        };
        let of_key = self.of_key.get(key).copied().unwrap_or(0);
        let of_key_max = share_of_a_key(most, self.all - of_key, share.keys);
        if of_key.saturating_add(more) > of_key_max {
            return Err(NoShare::OfKey(of_key_max));
        }
        Ok(())
    }

    fn change(&mut self, key: Option<&str>, before: u64, after: u64) {
        self.all = self.all - before + after;
        let Some(key) = key.filter(|_| before != after) else {
            return;
        };
        match self.of_key.get_mut(key) {
            Some(of_key) if *of_key - before + after == 0 => drop(self.of_key.remove(key)),
            Some(of_key) => *of_key = *of_key - before + after,
            None => drop(self.of_key.insert(key.to_owned(), after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(shared: &SharedAmount, key: &str, amount: u64) -> Result<Share, NoShare> {
        let mut share = shared.begin(Some(key), 3);
        share.resize(amount, 8).map(|()| share)
    }

    #[test]
    fn two_keys_together_leave_a_part_to_a_third_one() {
        let shared = SharedAmount::default();
        let first = hold(&shared, "a", 4).expect("half of all");
        assert_eq!(hold(&shared, "a", 1).err(), Some(NoShare::OfKey(4)));
        let _second = hold(&shared, "b", 2).expect("half of the rest");
        assert_eq!(hold(&shared, "b", 1).err(), Some(NoShare::OfKey(2)));
        let _third = hold(&shared, "c", 1).expect("half of the rest");
        assert_eq!(shared.held(), 7);
        drop(first);
        drop(hold(&shared, "c", 2).expect("the others leave six"));
    }

    #[test]
    fn a_key_alone_and_holders_without_a_key_may_have_all() {
        let shared = SharedAmount::default();
        for key in [Some("a"), None] {
            let mut share = shared.begin(key, 1);
            share.resize(8, 8).expect("all of it");
            assert_eq!(share.resize(9, 8), Err(NoShare::Full(8)));
            share.resize(3, 1).expect("less is always granted");
            assert_eq!(shared.held(), 3);
        }
        assert_eq!(shared.held(), 0);
    }

    /// The map has no entries for keys that hold nothing.
    #[test]
    fn a_key_that_holds_nothing_is_forgotten() {
        let shared = SharedAmount::default();
        for number in 0..100_000 {
            drop(hold(&shared, &number.to_string(), 1));
        }
        assert_eq!((shared.held(), locked(&shared.0).of_key.len()), (0, 0));
    }
}
