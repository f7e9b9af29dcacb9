//! The places of boxes: every box that exists or is being created has one, with what it was
//! promised.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tare_engine::{BoxId, Engine, GaugedUse};
use tokio::sync::Notify;

use crate::admission::Work;
use crate::admission::promise::{LiveBox, Promise};
use crate::workers::locked;

/// What each existing box uses.
pub type UseOfBoxes = BTreeMap<PlaceNumber, GaugedUse>;

pub type PlaceNumber = u64;

/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Places(Arc<PlaceTable>);

#[derive(Debug, Default)]
struct PlaceTable {
    taken: Mutex<TakenPlaces>,
    /// Notified when a place is free again.
    released: Notify,
}

/// The places that are taken.
#[derive(Debug, Default)]
pub struct TakenPlaces {
    boxes: BTreeMap<PlaceNumber, PlacedBox>,
    next: PlaceNumber,
}

#[derive(Debug)]
struct PlacedBox {
    work: Work,
    promise: Promise,
    /// `None` while the box is being created.
    id: Option<BoxId>,
}

/// The place of one box, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    pub number: PlaceNumber,
}

impl Places {
    /// Locks the places, so that a check and a [`Places::take`] after it are one step.
    pub fn lock(&self) -> MutexGuard<'_, TakenPlaces> {
        locked(&self.0.taken)
    }

    /// Takes a place for a box. `id` is `None` if the box is still to be created.
    pub fn take(
        &self,
        taken: &mut TakenPlaces,
        work: Work,
        promise: Promise,
        id: Option<BoxId>,
    ) -> Place {
        let number = taken.next;
        taken.next += 1;
        taken.boxes.insert(number, PlacedBox { work, promise, id });
        Place { places: self.clone(), number }
    }

    /// Returns when a place is free again.
    pub async fn released(&self) {
        self.0.released.notified().await;
    }

    /// Reads what each box uses. Takes a system call or more for each.
    pub fn measure_use(&self, engine: &Engine) -> UseOfBoxes {
        let taken = self.lock();
        let ids = taken.boxes.iter().filter_map(|(number, it)| Some((*number, it.id.clone()?)));
        let ids: Vec<(PlaceNumber, BoxId)> = ids.collect();
        drop(taken);
        ids.into_iter().map(|(number, id)| (number, engine.gauged_use(&id))).collect()
    }
}

impl TakenPlaces {
    pub fn count(&self) -> u64 {
        self.boxes.len() as u64
    }

    /// How many boxes are being created.
    pub fn in_creation(&self) -> u64 {
        self.boxes.values().filter(|it| it.id.is_none()).count() as u64
    }

    /// Returns all boxes, with what each uses if that is known.
    pub fn live_boxes(&self, used: &UseOfBoxes) -> Vec<LiveBox> {
        self.boxes.keys().filter_map(|number| self.live_box(*number, used)).collect()
    }

    /// Returns the box of a place, with what it uses if that is known.
    pub fn live_box(&self, number: PlaceNumber, used: &UseOfBoxes) -> Option<LiveBox> {
        let PlacedBox { work, promise, .. } = *self.boxes.get(&number)?;
        let used = used.get(&number).copied().unwrap_or_default();
        Some(LiveBox { work, promise, used })
    }

    pub fn set_promise(&mut self, number: PlaceNumber, promise: Promise) {
        if let Some(placed) = self.boxes.get_mut(&number) {
            placed.promise = promise;
        }
    }
}

impl Place {
    pub fn promise(&self) -> Promise {
        let placed = self.places.lock().live_box(self.number, &UseOfBoxes::new());
        placed.map(|it| it.promise).unwrap_or_default()
    }

    /// Promises the box this, whether or not there is room.
    pub fn set_promise(&self, promise: Promise) {
        self.places.lock().set_promise(self.number, promise);
    }

    /// The box is created: from now on, measurements contain its descriptors and what it uses.
    pub fn made(&mut self, id: &BoxId) {
        if let Some(placed) = self.places.lock().boxes.get_mut(&self.number) {
            placed.id.get_or_insert_with(|| id.clone());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().boxes.remove(&self.number);
        self.places.0.released.notify_one();
    }
}
