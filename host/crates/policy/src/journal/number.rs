//! Numbers in lines: floats bit for bit, and 64-bit seeds as decimal text, because JSON numbers end at 53 bits for many
//! readers.
//!
//! A finite float is the shortest number that reads back as the same bits (`-0.0` keeps its sign); JSON has none for the
//! others, which are the texts `inf`, `-inf` and `nan`.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, Visitor};
use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Copy)]
struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            value if value.is_finite() => serializer.serialize_f64(value),
            value if value.is_nan() => serializer.serialize_str("nan"),
            value if value > 0.0 => serializer.serialize_str("inf"),
            _ => serializer.serialize_str("-inf"),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;
        impl Visitor<'_> for Numbers {
            type Value = f64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, \"inf\", \"-inf\" or \"nan\"")
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
                Ok(value)
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
                Ok(value as f64)
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
                Ok(value as f64)
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<f64, E> {
                match value {
                    "inf" => Ok(f64::INFINITY),
                    "-inf" => Ok(f64::NEG_INFINITY),
                    "nan" => Ok(f64::NAN),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(Numbers).map(Self)
    }
}

/// One float; for `#[serde(with)]`.
pub(super) mod one {
    use super::*;

    pub(in crate::journal) fn serialize<S: Serializer>(
        value: &f64,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        Number(*value).serialize(serializer)
    }

    pub(in crate::journal) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<f64, D::Error> {
        Number::deserialize(deserializer).map(|number| number.0)
    }
}

/// A column of floats; for `#[serde(with)]`.
pub(super) mod column {
    use super::*;

    pub(in crate::journal) fn serialize<S: Serializer>(
        values: &[f64],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(values.len()))?;
        for value in values {
            list.serialize_element(&Number(*value))?;
        }
        list.end()
    }

    pub(in crate::journal) fn deserialize<'de, 'a, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Cow<'a, [f64]>, D::Error> {
        let numbers = Vec::<Number>::deserialize(deserializer)?;
        Ok(Cow::Owned(numbers.into_iter().map(|number| number.0).collect()))
    }
}

/// A seed; for `#[serde(with)]`.
pub(super) mod seed {
    use super::*;

    pub(in crate::journal) fn serialize<S: Serializer>(seed: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(seed)
    }

    pub(in crate::journal) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<u64, D::Error> {
        let text = Cow::<'_, str>::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format!("{text:?} is not a seed")))
    }
}

/// Labels as an object, in their order; for `#[serde(with)]`.
pub(super) mod labels {
    use serde::de::MapAccess;

    use super::*;

    pub(in crate::journal) fn serialize<S: Serializer>(
        labels: &[(String, String)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(labels.iter().map(|(key, value)| (key, value)))
    }

    pub(in crate::journal) fn deserialize<'de, 'a, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Cow<'a, [(String, String)]>, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(String, String)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Pairs).map(Cow::Owned)
    }
}
