//! Which objects hold the bytes of a file.
//!
//! Not here: which of the bytes (the crate `weft-layout`).

use crate::ids::{Generation, ObjectId};
use crate::limits::{STRIPE_BYTES_MAX, STRIPE_BYTES_MIN, STRIPE_WIDTH_MAX};
use serde::{Deserialize, Serialize};

/// Layout of a regular file. Of a directory: what is made in it begins with the same; `Empty`, `Planned`, or `Split`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Layout {
    /// Nothing was written yet: no object is needed. A size above zero is all hole.
    #[default]
    Empty,
    /// One object holds the whole file; its offsets are the file's.
    Whole { object: ObjectId, generation: Generation },
    /// As `Empty`; the first write makes several objects.
    Planned(StripePlan),
    /// Several objects hold the file in turns.
    Striped(Box<Striped>),
    /// Each writer has a part of his own, none at first: [`crate::split`]. `epoch` counts the publications.
    Split { epoch: u64 },
}

/// What the layout of a file, or of files that are made in a directory, is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Plan {
    /// On one node.
    #[default]
    Whole,
    /// On several nodes in turns.
    Striped(StripePlan),
    /// A part for each writer, on his node.
    Split,
}

impl Plan {
    /// The same for a file whose objects are made at once: of a split one all bytes are in one part then.
    pub fn of_objects(self) -> Self {
        match self {
            Plan::Split => Plan::Whole,
            plan => plan,
        }
    }

    /// How the file is to be striped, if it is.
    pub fn stripes(self) -> Option<StripePlan> {
        match self {
            Plan::Striped(stripes) => Some(stripes),
            Plan::Whole | Plan::Split => None,
        }
    }
}

impl From<StripePlan> for Plan {
    fn from(stripes: StripePlan) -> Self {
        Plan::Striped(stripes)
    }
}

/// How a file is to be striped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "(u16, u32)", into = "(u16, u32)")]
pub struct StripePlan {
    width: u16,
    stripe_bytes: u32,
}

impl StripePlan {
    /// `width` objects, each at another node, which hold `stripe_bytes` in turns. `None`: not 2 to [`STRIPE_WIDTH_MAX`]
    /// objects, or not [`STRIPE_BYTES_MIN`] to [`STRIPE_BYTES_MAX`] bytes.
    pub fn new(width: u16, stripe_bytes: u32) -> Option<Self> {
        let width_holds = (2..=STRIPE_WIDTH_MAX).contains(&width);
        let bytes_hold = (STRIPE_BYTES_MIN..=STRIPE_BYTES_MAX).contains(&stripe_bytes);
        (width_holds && bytes_hold).then_some(Self { width, stripe_bytes })
    }

    /// Objects, at most: where fewer nodes store, there are fewer.
    pub fn width(self) -> u16 {
        self.width
    }

    /// Bytes of a stripe.
    pub fn stripe_bytes(self) -> u32 {
        self.stripe_bytes
    }
}

/// What files and directories begin with that are made in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Inherited {
    /// The layout of files.
    pub plan: Plan,
    /// Directories get parts as soon as they have a few names.
    pub spreads: bool,
}

/// A change of what a directory hands down; what it does not name stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum InheritedChange {
    Plan(Plan),
    Spreads(bool),
}

impl TryFrom<(u16, u32)> for StripePlan {
    type Error = &'static str;

    fn try_from((width, stripe_bytes): (u16, u32)) -> Result<Self, Self::Error> {
        Self::new(width, stripe_bytes).ok_or("stripes out of range")
    }
}

impl From<StripePlan> for (u16, u32) {
    fn from(plan: StripePlan) -> Self {
        (plan.width, plan.stripe_bytes)
    }
}

/// The objects of a striped file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "(u32, Generation, Vec<ObjectId>)", into = "(u32, Generation, Vec<ObjectId>)")]
pub struct Striped {
    plan: StripePlan,
    generation: Generation,
    objects: Vec<ObjectId>,
}

impl Striped {
    /// `None`: no number of objects, or no bytes of a stripe, that may be.
    pub fn new(stripe_bytes: u32, generation: Generation, objects: Vec<ObjectId>) -> Option<Self> {
        let plan = StripePlan::new(u16::try_from(objects.len()).ok()?, stripe_bytes)?;
        Some(Self { plan, generation, objects })
    }

    /// As many objects as there are.
    pub fn plan(&self) -> StripePlan {
        self.plan
    }

    /// Of all objects.
    pub fn generation(&self) -> Generation {
        self.generation
    }
}

impl TryFrom<(u32, Generation, Vec<ObjectId>)> for Striped {
    type Error = &'static str;

    fn try_from((bytes, generation, objects): (u32, Generation, Vec<ObjectId>)) -> Result<Self, Self::Error> {
        Self::new(bytes, generation, objects).ok_or("stripes out of range")
    }
}

impl From<Striped> for (u32, Generation, Vec<ObjectId>) {
    fn from(striped: Striped) -> Self {
        (striped.plan.stripe_bytes, striped.generation, striped.objects)
    }
}

impl Layout {
    /// The first object, by which layouts of one file are told apart. A split file has none: its parts come and go.
    pub fn object(&self) -> Option<ObjectId> {
        self.objects().first().copied()
    }

    /// All objects, in the order of their first bytes; not the parts of a split file.
    pub fn objects(&self) -> &[ObjectId] {
        match self {
            Layout::Empty | Layout::Planned(_) | Layout::Split { .. } => &[],
            Layout::Whole { object, .. } => std::slice::from_ref(object),
            Layout::Striped(striped) => &striped.objects,
        }
    }

    /// What the layout is, or will be.
    pub fn plan(&self) -> Plan {
        match self {
            Layout::Empty | Layout::Whole { .. } => Plan::Whole,
            Layout::Planned(plan) => Plan::Striped(*plan),
            Layout::Striped(striped) => Plan::Striped(striped.plan),
            Layout::Split { .. } => Plan::Split,
        }
    }

    /// How the file is striped, or will be.
    pub fn stripes(&self) -> Option<StripePlan> {
        self.plan().stripes()
    }

    /// Whether something was written, as far as the layout tells.
    pub fn has_bytes(&self) -> bool {
        self.object().is_some() || self.epoch().is_some_and(|epoch| epoch > 0)
    }

    /// Publications so far; `None`: the file is not split.
    pub fn epoch(&self) -> Option<u64> {
        match self {
            Layout::Split { epoch } => Some(*epoch),
            _ => None,
        }
    }

    /// The layout of a file or directory with this plan, and nothing written.
    pub fn planned(plan: Plan) -> Layout {
        match plan {
            Plan::Whole => Layout::Empty,
            Plan::Striped(stripes) => Layout::Planned(stripes),
            Plan::Split => Layout::Split { epoch: 0 },
        }
    }

    /// What is left when the objects go.
    pub fn without_objects(&self) -> Layout {
        Self::planned(self.plan())
    }

    /// The layout of a file without objects that is given these. `None`: its plan has no room for them.
    pub fn given(&self, first: ObjectId, others: &[ObjectId]) -> Option<Layout> {
        let generation = Generation(1);
        match self {
            Layout::Empty | Layout::Planned(_) if others.is_empty() => {
                Some(Layout::Whole { object: first, generation })
            }
            Layout::Planned(plan) if others.len() < usize::from(plan.width) => {
                let objects = [&[first], others].concat();
                Striped::new(plan.stripe_bytes, generation, objects).map(|striped| Layout::Striped(Box::new(striped)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use crate::ids::NodeId;

    #[test]
    fn plans_have_limits_also_on_the_wire() {
        assert!(StripePlan::new(2, STRIPE_BYTES_MIN).is_some());
        for (width, bytes) in [
            (0, STRIPE_BYTES_MIN),
            (1, STRIPE_BYTES_MIN),
            (STRIPE_WIDTH_MAX + 1, STRIPE_BYTES_MIN),
            (2, 0),
            (2, STRIPE_BYTES_MIN - 1),
            (2, STRIPE_BYTES_MAX + 1),
        ] {
            assert_eq!(StripePlan::new(width, bytes), None, "{width} {bytes}");
            assert!(codec::from_bytes::<StripePlan>(&codec::to_bytes(&(width, bytes))).is_err(), "{width} {bytes}");
        }
    }

    #[test]
    fn objects_come_as_planned_or_fewer() {
        let object = |number: u16| ObjectId::new(NodeId(number), 5);
        let plan = StripePlan::new(3, STRIPE_BYTES_MIN).expect("a plan");
        let planned = Layout::Planned(plan);
        assert_eq!(planned.given(object(1), &[]), Layout::Empty.given(object(1), &[]));
        assert_eq!(Layout::Empty.given(object(1), &[object(2)]), None);
        let three = planned.given(object(1), &[object(2), object(3)]).expect("as planned");
        assert_eq!(
            (three.objects().len(), three.object(), three.without_objects()),
            (3, Some(object(1)), planned.clone())
        );
        assert_eq!(planned.given(object(1), &[object(2), object(3), object(4)]), None);
        assert_eq!(three.given(object(1), &[]), None, "it has objects");
    }
}
