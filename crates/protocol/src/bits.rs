//! Sets of flags in messages: a number, of which bits without a meaning are refused.

/// Has a set of flags stand as a number of this type in messages.
macro_rules! serialize_bits {
    ($set:ty, $number:ty, $unknown:literal) => {
        impl serde::Serialize for $set {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.bits().serialize(serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $set {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let bits = <$number>::deserialize(deserializer)?;
                <$set>::from_bits(bits).ok_or_else(|| serde::de::Error::custom($unknown))
            }
        }
    };
}

pub(crate) use serialize_bits;
