//! Metrics of the pools: `tare_pool_*`.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Names and values of labels. Every value is known in advance.
type PoolLabels<const N: usize> = [(&'static str, &'static str); N];

#[derive(Debug, Default)]
pub struct PoolMetrics {
    members: Family<PoolLabels<2>, Gauge>,
    claims: Family<PoolLabels<2>, Counter>,
    misses: Family<PoolLabels<1>, Counter>,
    on_demand: Family<PoolLabels<1>, Counter>,
    template_age: Family<PoolLabels<1>, Gauge>,
    template_restarts: Family<PoolLabels<1>, Counter>,
}

/// The pool that has templates.
const TEMPLATES: PoolLabels<1> = [("pool", "python")];

impl PoolMetrics {
    /// Everything is 0 and not absent before it happens, so that alerts can use it.
    pub fn start_at_zero(&self, pool: &'static str, kind: &'static str) {
        self.members(pool, 0, 0);
        drop(self.claims.get_or_create(&[("pool", pool), ("kind", kind)]));
        drop(self.misses.get_or_create(&[("pool", pool)]));
        self.template_age(Duration::ZERO);
        drop(self.on_demand.get_or_create(&TEMPLATES));
        drop(self.template_restarts.get_or_create(&TEMPLATES));
    }

    pub fn register(&self, registry: &mut Registry) {
        let help = "Boxes of a pool, by state";
        registry.register("pool_members", help, self.members.clone());
        let help = "Requests that got a box of a pool, by what is in it";
        registry.register("pool_claims", help, self.claims.clone());
        let help = "Requests that got no box of their pool";
        registry.register("pool_misses", help, self.misses.clone());
        let help = "Claimed clones that were made for their request, because none was waiting";
        registry.register("pool_clones_on_demand", help, self.on_demand.clone());
        let help = "Age of the oldest template of a pool; 0 without one";
        registry.register("pool_template_age_seconds", help, self.template_age.clone());
        let help = "Templates that died and were replaced";
        registry.register("pool_template_restarts", help, self.template_restarts.clone());
    }

    pub fn members(&self, pool: &'static str, waiting: usize, making: usize) {
        for (state, count) in [("waiting", waiting), ("making", making)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.members.get_or_create(&[("pool", pool), ("state", state)]).set(count);
        }
    }

    pub fn claim(&self, pool: &'static str, kind: &'static str) {
        self.claims.get_or_create(&[("pool", pool), ("kind", kind)]).inc();
    }

    pub fn template_age(&self, age: Duration) {
        let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        self.template_age.get_or_create(&TEMPLATES).set(seconds);
    }

    pub fn template_died(&self) {
        self.template_restarts.get_or_create(&TEMPLATES).inc();
    }

    pub fn made_on_demand(&self) {
        self.on_demand.get_or_create(&TEMPLATES).inc();
    }

    pub fn miss(&self, pool: &'static str) {
        self.misses.get_or_create(&[("pool", pool)]).inc();
    }
}
