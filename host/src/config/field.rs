//! Kinds of values a setting can have, how each is read from TOML or from text, and how it is written.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// A value as a layer gives it.
pub(crate) enum Raw<'a> {
    /// From the file, with its own type.
    Toml(&'a toml::Value),
    /// From the environment or a flag.
    Text(&'a str),
}

/// A kind of value.
pub(crate) trait Field: Sized {
    /// Reads a value; errors with what was expected.
    fn read(raw: &Raw<'_>) -> Result<Self, String>;
    /// Writes it as a TOML value; `None` when it is not set.
    fn show(&self) -> Option<String>;
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// What policies that import WASI get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wasi {
    /// A refusal.
    Off,
    /// An empty world.
    Compat,
}

/// Which decisions are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalMode {
    /// None.
    Off,
    /// Some scoring decisions, and every plan.
    Sampled,
    /// All.
    Full,
}

/// A network address as clients write it: HOST:PORT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Name or IP address; an IPv6 address without its brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Authority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected HOST:PORT like lb1.example:8080, found {text:?}");
        if text.contains("://") {
            return Err(format!("{}; leave the scheme out", expected()));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
        let port = port.parse().map_err(|_| expected())?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_valid = match bare {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.len() <= 253 && host.chars().all(known),
        };
        is_valid.then(|| Self { host: bare.unwrap_or(host).to_owned(), port }).ok_or_else(expected)
    }
}

impl Field for String {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        text(raw).map(str::to_owned)
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Field for PathBuf {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        match text(raw)? {
            "" => Err("expected a path, found nothing".to_owned()),
            path => Ok(Self::from(path)),
        }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string_lossy()))
    }
}

impl Field for SocketAddr {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        let text = text(raw)?;
        let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
        match local {
            Some(port) => Ok(Self::from((Ipv4Addr::LOCALHOST, port))),
            None => text
                .parse()
                .map_err(|_| format!("expected IP:PORT like 127.0.0.1:8080 or [::1]:8080, found {text:?}")),
        }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Field for Authority {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        text(raw)?.parse()
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Field for Format {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        match text(raw)? {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("expected \"text\" or \"json\", found {other:?}")),
        }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(match self {
            Self::Text => "text",
            Self::Json => "json",
        }))
    }
}

impl Field for Wasi {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        match text(raw)? {
            "off" => Ok(Self::Off),
            "compat" => Ok(Self::Compat),
            other => Err(format!("expected \"off\" or \"compat\", found {other:?}")),
        }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(match self {
            Self::Off => "off",
            Self::Compat => "compat",
        }))
    }
}

impl Field for JournalMode {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        match text(raw)? {
            "off" => Ok(Self::Off),
            "sampled" => Ok(Self::Sampled),
            "full" => Ok(Self::Full),
            other => Err(format!("expected \"off\", \"sampled\" or \"full\", found {other:?}")),
        }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(match self {
            Self::Off => "off",
            Self::Sampled => "sampled",
            Self::Full => "full",
        }))
    }
}

impl Field for Vec<String> {
    /// A list, or one text with commas between. A text must hold something: an empty variable is more often a mistake than
    /// the wish to have nothing, and what is off then may be a protection.
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        if let Raw::Toml(toml::Value::Array(items)) = raw {
            return items.iter().map(|item| text(&Raw::Toml(item)).map(str::to_owned)).collect();
        }
        let items = text(raw).map_err(|_| format!("expected a list of texts, found {raw}"))?;
        let items: Self =
            items.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect();
        if items.is_empty() {
            return Err("expected one or more, separated by commas, found nothing; leave the setting out to have none"
                .to_owned());
        }
        Ok(items)
    }

    fn show(&self) -> Option<String> {
        Some(format!("[{}]", self.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", ")))
    }
}

impl Field for bool {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        match raw {
            Raw::Toml(toml::Value::Boolean(value)) => Ok(*value),
            Raw::Text("true" | "1") => Ok(true),
            Raw::Text("false" | "0") => Ok(false),
            other => Err(format!("expected true or false, found {other}")),
        }
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Field for u64 {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        let value = match raw {
            Raw::Toml(toml::Value::Integer(value)) => Self::try_from(*value).ok(),
            Raw::Text(text) => text.parse().ok(),
            Raw::Toml(_) => None,
        };
        value.ok_or_else(|| format!("expected a whole number of 0 or more, found {raw}"))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Field for f64 {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        let value = match raw {
            Raw::Toml(toml::Value::Float(value)) => Some(*value),
            Raw::Toml(toml::Value::Integer(value)) => i32::try_from(*value).ok().map(Self::from),
            Raw::Text(text) => text.parse().ok(),
            Raw::Toml(_) => None,
        };
        value.ok_or_else(|| format!("expected a number, found {raw}"))
    }

    fn show(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }
}

impl<T: Field> Field for Option<T> {
    /// An empty text takes the value of a lower layer away.
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        if matches!(raw, Raw::Text("")) { Ok(None) } else { T::read(raw).map(Some) }
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(T::show)
    }
}

impl fmt::Display for Raw<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Toml(toml::Value::String(text)) => write!(f, "{text:?}"),
            Self::Toml(toml::Value::Integer(value)) => write!(f, "{value}"),
            Self::Toml(toml::Value::Float(value)) => write!(f, "{value}"),
            Self::Toml(toml::Value::Boolean(value)) => write!(f, "{value}"),
            Self::Toml(value) => write!(f, "a {}", value.type_str()),
        }
    }
}

fn text<'a>(raw: &Raw<'a>) -> Result<&'a str, String> {
    match raw {
        Raw::Text(text) => Ok(text),
        Raw::Toml(toml::Value::String(text)) => Ok(text),
        Raw::Toml(_) => Err(format!("expected a text, found {raw}")),
    }
}

/// Writes a TOML basic string: its escapes are those of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        let check = |toml: &str, expected: Result<&[&str], &str>| {
            let table: toml::Table = format!("x = {toml}").parse().expect("TOML");
            let found = <Vec<String> as Field>::read(&Raw::Toml(&table["x"]));
            let expected = expected.map(|items| items.iter().map(|item| (*item).to_owned()).collect());
            assert_eq!(found, expected.map_err(str::to_owned), "{toml}");
            if let Ok(items) = found {
                let shown = items.show().expect("lists are always set");
                let again: toml::Table = format!("x = {shown}").parse().expect("TOML");
                assert_eq!(<Vec<String> as Field>::read(&Raw::Toml(&again["x"])), Ok(items));
            }
        };
        check("[]", Ok(&[]));
        check("[\"a\", \"b,c\"]", Ok(&["a", "b,c"]));
        check("\" a, b ,\"", Ok(&["a", "b"]));
        let empty =
            "expected one or more, separated by commas, found nothing; leave the setting out to have none";
        check("\"\"", Err(empty));
        check("\" , \"", Err(empty));
        check("[1]", Err("expected a text, found 1"));
        check("3", Err("expected a list of texts, found 3"));
    }

    #[test]
    fn authorities_are_parsed() {
        let check = |text: &str, expected: Option<(&str, u16)>| {
            let found = text.parse::<Authority>();
            let pair = found.as_ref().ok().map(|found| (found.host.as_str(), found.port));
            assert_eq!(pair, expected, "{text}: {found:?}");
            if let Ok(found) = found {
                assert_eq!(found.to_string(), text);
            }
        };
        check("lb1.example:8080", Some(("lb1.example", 8080)));
        check("10.0.0.1:0", Some(("10.0.0.1", 0)));
        check("[::1]:80", Some(("::1", 80)));
        check("::1:80", None);
        check("lb1", None);
        check(":80", None);
        check("lb1:99999", None);
        check("http://lb1:80", None);
        check("a b:80", None);
        check("a/b:80", None);
        check("user@host:80", None);
    }
}
