//! The objects of a file, and the rights to them.

use std::sync::Arc;
use weft_layout::Stripes;
use weft_protocol::{Capability, Layout, ObjectId};

/// One object, and the right to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Which one.
    pub object: ObjectId,
    /// What may be done with it.
    pub capability: Capability,
}

/// All objects of a file. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileObjects {
    first: Held,
    stripes: Stripes,
    /// Of a striped file: the further ones. In a place of its own, it makes most files small.
    others: Option<Arc<[Held]>>,
}

impl From<Held> for FileObjects {
    fn from(first: Held) -> Self {
        Self { first, stripes: Stripes::WHOLE, others: None }
    }
}

impl FileObjects {
    /// Of what an open told; `None`: the file has no object, or not all rights were told.
    pub fn told(layout: &Layout, first: Option<Capability>, others: &[Capability]) -> Option<Self> {
        let objects = layout.objects();
        if objects.len() != usize::from(first.is_some()) + others.len() {
            return None;
        }
        let rights = first.iter().chain(others);
        let held = |(object, capability): (&ObjectId, &Capability)| Held { object: *object, capability: *capability };
        Self::of(Stripes::of(layout), &objects.iter().zip(rights).map(held).collect::<Vec<_>>())
    }

    /// New objects of a file with this layout. `None`: it is not to have so many.
    pub fn made(layout: &Layout, held: &[Held]) -> Option<Self> {
        let (first, others) = held.split_first()?;
        let others = others.iter().map(|held| held.object).collect::<Vec<_>>();
        let given = layout.without_objects().given(first.object, &others)?;
        Self::of(Stripes::of(&given), held)
    }

    fn of(stripes: Stripes, held: &[Held]) -> Option<Self> {
        let (first, others) = held.split_first()?;
        Some(Self { first: *first, stripes, others: (!others.is_empty()).then(|| others.into()) })
    }

    /// The first one, by which the objects of one file are told apart.
    pub fn first(&self) -> Held {
        self.first
    }

    /// Whether there are several.
    pub fn is_striped(&self) -> bool {
        self.others.is_some()
    }

    /// How the file's bytes lie in them.
    pub fn stripes(&self) -> Stripes {
        self.stripes
    }

    /// All but the first.
    pub fn others(&self) -> &[Held] {
        self.others.as_deref().unwrap_or_default()
    }

    /// All, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Held> {
        std::iter::once(self.first).chain(self.others().iter().copied())
    }

    /// The one with this index.
    pub fn at(&self, index: usize) -> Held {
        match index.checked_sub(1) {
            None => self.first,
            Some(index) => self.others()[index],
        }
    }

    /// The layout that a file with this one gets with them.
    pub fn layout_in(&self, layout: &Layout) -> Layout {
        let others = self.others().iter().map(|held| held.object).collect::<Vec<_>>();
        layout.without_objects().given(self.first.object, &others).expect("they were made for the file's plan")
    }
}
