//! Quotas of keys: boxes, memory, runs per second.
//!
//! The record of a box names its key, so the counts survive this server. A box counts from before
//! its creation until its end was observed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tare_engine::spec::{Driver, quantity};

use crate::admission::{Caller, Need, Work};
use crate::config::{ByteSize, Config, Key};
use crate::error::ServiceError;
use crate::workers::locked;

/// How many stops of one key may wait at once. Each has a connection and a pidfd.
const STOPS_MAX: usize = 64;
/// When a refused client may try again: boxes and stops end by themselves.
const RETRY_AFTER_S: u32 = 5;

/// What every key has now. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Quotas(Arc<Mutex<HashMap<String, Account>>>);

/// What one key has now.
#[derive(Debug, Default)]
struct Account {
    boxes: u64,
    memory_bytes: u64,
    /// `None` before its first run, and without a limit on runs.
    runs: Option<Bucket>,
    stops: usize,
}

/// A token bucket: each run takes a token, and tokens come back at a steady rate.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    filled_at: Instant,
}

/// One box that counts against the quota of a key, until it is dropped.
#[derive(Debug)]
pub struct QuotaHold {
    quotas: Quotas,
    key: String,
    need: Need,
}

impl Quotas {
    /// Counts a box that is about to be created. Returns `None` without a key: quotas belong to keys.
    pub fn hold(
        &self,
        config: &Config,
        caller: &Caller,
        need: Need,
    ) -> Result<Option<QuotaHold>, ServiceError> {
        let Some(key) = caller.tenant.key() else {
            return Ok(None);
        };
        let mut accounts = locked(&self.0);
        let account = accounts.entry(key.to_owned()).or_default();
        if let Some(quota) = config.keys.iter().find(|one| one.name.as_str() == key) {
            account.check(quota, need.memory_bytes)?;
            if need.work == Work::Run {
                account.take_run(quota, Instant::now())?;
            }
        }
        Ok(Some(self.put(account, key, need)))
    }

    /// Counts a box that exists already, for the key that created it.
    pub fn of_existing(&self, key: &str, memory_bytes: u64) -> QuotaHold {
        let mut accounts = locked(&self.0);
        let account = accounts.entry(key.to_owned()).or_default();
        self.put(account, key, Need::of_existing(Driver::Native, 0, memory_bytes))
    }

    fn put(&self, account: &mut Account, key: &str, need: Need) -> QuotaHold {
        account.boxes += 1;
        account.memory_bytes = account.memory_bytes.saturating_add(need.memory_bytes);
        QuotaHold { quotas: self.clone(), key: key.to_owned(), need }
    }

    /// Counts a stop that waits for its box. Without keys all callers share one account.
    pub fn begin_stop(&self, caller: &Caller) -> Result<StopPermit, ServiceError> {
        let key = caller.tenant.as_str().to_owned();
        let mut accounts = locked(&self.0);
        let account = accounts.entry(key.clone()).or_default();
        if account.stops >= STOPS_MAX {
            let message = format!("limit reached: {STOPS_MAX} stops are waiting for their boxes");
            return Err(ServiceError::limited("quota_stops", message, RETRY_AFTER_S)
                .with_hint("try again when one of the boxes has ended"));
        }
        account.stops += 1;
        Ok(StopPermit { quotas: self.clone(), key })
    }

    /// Changes the account of a key, and forgets it if nothing of it is left.
    fn change(&self, key: &str, change: impl FnOnce(&mut Account)) {
        let mut accounts = locked(&self.0);
        if let Some(account) = accounts.get_mut(key) {
            change(account);
            if account.is_empty() {
                accounts.remove(key);
            }
        }
    }
}

/// One stop that waits for its box, until this is dropped.
#[derive(Debug)]
pub struct StopPermit {
    quotas: Quotas,
    key: String,
}

impl Drop for StopPermit {
    fn drop(&mut self) {
        self.quotas.change(&self.key, |account| account.stops -= 1);
    }
}

impl QuotaHold {
    /// Counts another memory limit of the box. A smaller one is always accepted.
    pub fn resize(&mut self, config: &Config, memory_bytes: u64) -> Result<(), ServiceError> {
        let quotas = self.quotas.clone();
        let mut accounts = locked(&quotas.0);
        let account = accounts.entry(self.key.clone()).or_default();
        let more = memory_bytes.saturating_sub(self.need.memory_bytes);
        let quota = config.keys.iter().find(|one| one.name.as_str() == self.key);
        if let Some(quota) = quota.filter(|_| more > 0) {
            account.check_memory(quota, more)?;
        }
        self.set(account, memory_bytes);
        Ok(())
    }

    /// Counts the memory limit that the box has, also beyond the quota of its key.
    pub fn observe(&mut self, memory_bytes: u64) {
        let quotas = self.quotas.clone();
        self.set(locked(&quotas.0).entry(self.key.clone()).or_default(), memory_bytes);
    }

    fn set(&mut self, account: &mut Account, memory_bytes: u64) {
        let others = account.memory_bytes.saturating_sub(self.need.memory_bytes);
        account.memory_bytes = others.saturating_add(memory_bytes);
        self.need.memory_bytes = memory_bytes;
    }

    pub fn memory_bytes(&self) -> u64 {
        self.need.memory_bytes
    }

    /// Gives the token of a run back, because the run was refused for another reason.
    pub fn refund(self) {
        if self.need.work == Work::Run {
            self.quotas.change(&self.key, |account| {
                account.runs.iter_mut().for_each(|bucket| bucket.left += 1.0);
            });
        }
    }
}

impl Drop for QuotaHold {
    fn drop(&mut self) {
        self.quotas.change(&self.key, |account| {
            account.boxes -= 1;
            account.memory_bytes = account.memory_bytes.saturating_sub(self.need.memory_bytes);
        });
    }
}

impl Account {
    /// Whether the account can be forgotten. It is needed while it has tokens of runs.
    fn is_empty(&self) -> bool {
        self.boxes == 0 && self.stops == 0 && self.runs.is_none()
    }

    fn check(&self, quota: &Key, memory_bytes: u64) -> Result<(), ServiceError> {
        let key = quota.name.as_str();
        if let Some(most) = quota.boxes.filter(|most| self.boxes >= *most) {
            let message = format!("limit reached: key {key:?} has {} of {most} boxes", self.boxes);
            return Err(ServiceError::limited("quota_boxes", message, RETRY_AFTER_S)
                .with_hint("remove one, or ask the operator to raise boxes in [[keys]]"));
        }
        self.check_memory(quota, memory_bytes)
    }

    fn check_memory(&self, quota: &Key, memory_bytes: u64) -> Result<(), ServiceError> {
        let key = quota.name.as_str();
        let wanted = self.memory_bytes.saturating_add(memory_bytes);
        if let Some(ByteSize(most)) = quota.memory_bytes.filter(|most| wanted > most.0) {
            let message = format!(
                "key {key:?} has boxes with {} of {} of memory, and asks for {}",
                quantity::show_bytes(self.memory_bytes),
                quantity::show_bytes(most),
                quantity::show_bytes(memory_bytes)
            );
            return Err(ServiceError::limited("quota_memory_bytes", message, RETRY_AFTER_S)
                .with_hint("remove a box, or ask the operator to raise memory_bytes in [[keys]]"));
        }
        Ok(())
    }

    fn take_run(&mut self, quota: &Key, now: Instant) -> Result<(), ServiceError> {
        let Some(rate) = quota.runs_per_second else {
            return Ok(());
        };
        // With less than one token, no run could ever begin.
        let most = rate.max(1.0);
        let bucket = self.runs.get_or_insert(Bucket { left: most, filled_at: now });
        let filled = now.saturating_duration_since(bucket.filled_at).as_secs_f64() * rate;
        bucket.left = (bucket.left + filled).min(most);
        bucket.filled_at = now;
        if bucket.left < 1.0 {
            let key = quota.name.as_str();
            let message = format!("key {key:?} may begin {rate} runs per second");
            let seconds = ((1.0 - bucket.left) / rate).ceil().clamp(1.0, 3600.0);
            return Err(ServiceError::limited("quota_runs_per_second", message, seconds as u32)
                .with_hint("wait, or ask the operator to raise runs_per_second in [[keys]]"));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key() -> Key {
        Key::named("ci", b"secret")
    }

    fn config(key: Key) -> Config {
        Config { keys: vec![key], ..Config::default() }
    }

    fn ci() -> Caller {
        Caller::with_key(&key())
    }

    #[test]
    fn boxes_and_memory_are_counted_until_they_end() {
        let quotas = Quotas::default();
        let config = config(Key { boxes: Some(2), memory_bytes: Some(ByteSize(100)), ..key() });
        let hold = |memory_bytes| {
            quotas.hold(&config, &ci(), Need::of_existing(Driver::Native, 0, memory_bytes))
        };
        let first = hold(60).expect("there is room");
        assert_eq!(hold(41).expect_err("too much").code, "quota_memory_bytes");
        let _second = hold(40).expect("there is room");
        assert_eq!(hold(0).expect_err("too many").code, "quota_boxes");
        drop(first);
        assert!(hold(60).is_ok());
        let much = Need::of_existing(Driver::Native, 1, 1 << 40);
        let without_key = quotas.hold(&config, &Caller::default(), much);
        assert!(without_key.expect("no quota").is_none());
    }

    /// The command line asks no server for a larger limit.
    #[test]
    fn memory_that_a_box_has_beyond_the_quota_counts() {
        let quotas = Quotas::default();
        let config = config(Key { memory_bytes: Some(ByteSize(100)), ..key() });
        let hold = |memory_bytes| {
            quotas.hold(&config, &ci(), Need::of_existing(Driver::Native, 0, memory_bytes))
        };
        let mut first = hold(60).expect("there is room").expect("it has a key");
        assert_eq!(first.resize(&config, 101).expect_err("too much").code, "quota_memory_bytes");
        first.observe(101);
        assert!(hold(0).is_err());
        first.observe(99);
        assert!(hold(1).is_ok());
        drop(first);
        assert!(hold(100).is_ok());
    }

    #[test]
    fn a_box_that_was_there_before_counts_for_its_key() {
        let quotas = Quotas::default();
        let config = config(Key { boxes: Some(1), ..key() });
        let _found = quotas.of_existing("ci", 1);
        let refused = quotas.hold(
            &config,
            &ci(),
            Need { work: Work::Run, ..Need::of_existing(Driver::Native, 1, 0) },
        );
        assert_eq!(refused.expect_err("one is there").code, "quota_boxes");
    }

    /// Boxes of keys that are no more leave no account behind.
    #[test]
    fn an_account_without_boxes_is_forgotten() {
        let quotas = Quotas::default();
        for number in 0..100_000 {
            drop(quotas.of_existing(&format!("key-{number}"), 1));
        }
        assert_eq!(locked(&quotas.0).len(), 0);
    }

    #[test]
    fn runs_come_steadily_and_a_few_at_once() {
        let mut account = Account::default();
        let quota = Key { runs_per_second: Some(2.0), ..key() };
        let begin = Instant::now();
        let mut at = |ms| account.take_run(&quota, begin + Duration::from_millis(ms));
        assert!(at(0).is_ok() && at(0).is_ok());
        let refused = at(0).expect_err("two came");
        assert_eq!((refused.code, refused.retry_after_s), ("quota_runs_per_second", Some(1)));
        assert!(at(499).is_err());
        assert!(at(500).is_ok());
        assert!(at(500).is_err());
        assert!(at(60_000).is_ok() && at(60_000).is_ok());
        assert!(at(60_000).is_err(), "what was not used is not saved up");
    }

    #[test]
    fn a_run_that_is_refused_for_another_reason_spends_no_token() {
        let quotas = Quotas::default();
        let config = config(Key { runs_per_second: Some(0.001), ..key() });
        let hold = || {
            quotas.hold(
                &config,
                &ci(),
                Need { work: Work::Run, ..Need::of_existing(Driver::Native, 1, 0) },
            )
        };
        for _refused in 0..3 {
            let hold = hold().expect("it has its token");
            hold.expect("it has a key").refund();
        }
        drop(hold().expect("it has its token"));
        assert!(hold().is_err());
    }

    #[test]
    fn at_most_64_stops_of_a_key_wait_at_once() {
        let quotas = Quotas::default();
        for caller in [ci(), Caller::default()] {
            let mut permits: Vec<_> = (0..STOPS_MAX)
                .map(|_| quotas.begin_stop(&caller).expect("there is room"))
                .collect();
            let refused = quotas.begin_stop(&caller).expect_err("all are taken");
            assert_eq!(refused.code, "quota_stops");
            assert!(refused.retry_after_s.is_some());
            permits.pop();
            assert!(quotas.begin_stop(&caller).is_ok());
        }
    }
}
