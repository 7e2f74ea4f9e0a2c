//! Compares what a component exports and imports with the contract, and says what is missing or different.

use std::fmt;
use std::sync::LazyLock;

use wasmtime::Engine;
use wasmtime::component::types::{ComponentFunc, ComponentInstance, ComponentItem, Type};

use crate::wasi;

/// Which questions a policy answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// It exports `scoring`.
    pub scoring: bool,
    /// It exports `claiming`.
    pub claiming: bool,
}

impl Roles {
    /// Returns the names of the roles.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        [("scoring", self.scoring), ("claiming", self.claiming)]
            .into_iter()
            .filter_map(|(name, has)| has.then_some(name))
            .collect()
    }
}

/// What keeps a component from being a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// It speaks another version of the contract.
    Version(String),
    /// It imports something the host does not offer.
    Imports(Vec<String>),
    /// It imports WASI, which this runtime does not offer but could.
    Wasi(Vec<String>),
    /// It has none of the exports of a policy.
    OtherWorld(Vec<String>),
    /// Functions, fields or cases that are missing or different, one line each.
    Differences(Vec<String>),
}

/// Checks a component's type; `Ok` names its roles. With `offers_wasi` it may import WASI, too.
pub(crate) fn check(
    engine: &Engine,
    ty: &wasmtime::component::types::Component,
    offers_wasi: bool,
) -> Result<Roles, Mismatch> {
    let exports: Vec<_> = ty.exports(engine).map(|(name, item)| (name.to_owned(), item.ty)).collect();
    if let Some(version) = exports.iter().find_map(|(name, _)| foreign_version(name)) {
        return Err(Mismatch::Version(version));
    }
    let is_offered = |name: &str| is_granted(name) || offers_wasi && wasi::offers(name);
    let unknown_imports: Vec<_> =
        ty.imports(engine).filter(|(name, _)| !is_offered(name)).map(|(name, _)| name.to_owned()).collect();
    if !unknown_imports.is_empty() {
        let is_all_wasi = unknown_imports.iter().all(|name| wasi::offers(name));
        let mismatch = if is_all_wasi { Mismatch::Wasi } else { Mismatch::Imports };
        return Err(mismatch(unknown_imports));
    }
    let interface = |name: &str| {
        exports.iter().find_map(|(export, item)| match item {
            ComponentItem::ComponentInstance(instance) if *export == full_name(name) => Some(instance),
            _ => None,
        })
    };
    let roles = Roles { scoring: interface("scoring").is_some(), claiming: interface("claiming").is_some() };
    if roles == Roles::default() {
        return Err(Mismatch::OtherWorld(exports.into_iter().map(|(name, _)| name).collect()));
    }
    let mut differences = Differences::default();
    match interface("lifecycle") {
        Some(instance) => differences.interface(engine, "lifecycle", instance),
        None => differences.0.push(format!("the interface `{}` is missing", full_name("lifecycle"))),
    }
    for role in roles.names() {
        if let Some(instance) = interface(role) {
            differences.interface(engine, role, instance);
        }
    }
    for (name, item) in ty.imports(engine) {
        if name == full_name("host")
            && let ComponentItem::ComponentInstance(instance) = &item.ty
        {
            differences.imported(engine, instance);
        }
    }
    if differences.0.is_empty() { Ok(roles) } else { Err(Mismatch::Differences(differences.0)) }
}

fn full_name(interface: &str) -> String {
    format!("fulcrum:policy/{interface}@{}", super::VERSION)
}

fn is_granted(import: &str) -> bool {
    ["host", "lifecycle", "scoring", "claiming"].iter().any(|interface| import == full_name(interface))
}

/// Returns the version of a `fulcrum:policy` export that is not ours.
fn foreign_version(export: &str) -> Option<String> {
    let (_, version) = export.strip_prefix("fulcrum:policy/")?.split_once('@')?;
    (version != super::VERSION).then(|| version.to_owned())
}

#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn interface(&mut self, engine: &Engine, name: &str, found: &ComponentInstance) {
        for (function, expected) in &contract(name).functions {
            let place = format!("`{name}.{function}`");
            match found.get_export(engine, function).map(|item| item.ty) {
                Some(ComponentItem::ComponentFunc(found)) => self.function(&place, expected, &found),
                Some(_) => self.0.push(format!("{place} must be a function")),
                None => self.0.push(format!("{place} is missing, expected {expected}")),
            }
        }
    }

    /// An import may leave functions out, but what it names must be what we offer.
    fn imported(&mut self, engine: &Engine, found: &ComponentInstance) {
        for (name, item) in found.exports(engine) {
            let ComponentItem::ComponentFunc(found) = item.ty else { continue };
            match contract("host").functions.iter().find(|(function, _)| function == name) {
                Some((_, expected)) => self.function(&format!("import `host.{name}`"), expected, &found),
                None => self.0.push(format!("import `host.{name}` does not exist in this version")),
            }
        }
    }

    fn function(&mut self, place: &str, expected: &Function, found: &ComponentFunc) {
        if found.async_() {
            self.0.push(format!("{place} is async, it must be synchronous"));
            return;
        }
        let params: Vec<_> = found.params().map(|(name, ty)| (name.to_owned(), Shape::of(&ty))).collect();
        self.fields(place, "parameter", &expected.params, &params);
        let result = found.results().next().map(|ty| Shape::of(&ty));
        match (&expected.result, &result) {
            (Some(expected), Some(found)) => self.shape(&format!("the result of {place}"), expected, found),
            (None, None) => {}
            (Some(expected), None) => self.0.push(format!("{place} must return {expected}")),
            (None, Some(found)) => self.0.push(format!("{place} returns {found}, it must return nothing")),
        }
    }

    fn shape(&mut self, place: &str, expected: &Shape, found: &Shape) {
        match (expected, found) {
            (Shape::List(expected), Shape::List(found)) | (Shape::Option(expected), Shape::Option(found)) => {
                self.shape(&format!("each item of {place}"), expected, found);
            }
            (Shape::Record(expected), Shape::Record(found)) => self.fields(place, "field", expected, found),
            (Shape::Tuple(expected), Shape::Tuple(found)) if expected.len() == found.len() => {
                for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
                    self.shape(&format!("item {at} of {place}"), expected, found);
                }
            }
            (Shape::Variant(expected), Shape::Variant(found)) => self.cases(place, expected, found),
            (Shape::Result(ok, err), Shape::Result(found_ok, found_err)) => {
                self.payload(&format!("the ok of {place}"), ok.as_deref(), found_ok.as_deref());
                self.payload(&format!("the error of {place}"), err.as_deref(), found_err.as_deref());
            }
            (expected, found) if expected == found => {}
            (expected, found) => self.0.push(format!("{place} is {found}, it must be {expected}")),
        }
    }

    fn fields(&mut self, place: &str, kind: &str, expected: &[(String, Shape)], found: &[(String, Shape)]) {
        let before = self.0.len();
        for (name, shape) in expected {
            match found.iter().find(|(other, _)| other == name) {
                Some((_, other)) => self.shape(&format!("{kind} `{name}` of {place}"), shape, other),
                None => self.0.push(format!("{kind} `{name}` of {place} is missing, it must be {shape}")),
            }
        }
        for (name, _) in found {
            if !expected.iter().any(|(other, _)| other == name) {
                self.0.push(format!("{kind} `{name}` of {place} does not exist in this version"));
            }
        }
        if self.0.len() == before && expected.iter().zip(found).any(|(a, b)| a.0 != b.0) {
            self.0.push(format!("the {kind}s of {place} stand in another order"));
        }
    }

    fn cases(
        &mut self,
        place: &str,
        expected: &[(String, Option<Shape>)],
        found: &[(String, Option<Shape>)],
    ) {
        let before = self.0.len();
        for (name, payload) in expected {
            match found.iter().find(|(other, _)| other == name) {
                Some((_, other)) => {
                    self.payload(&format!("case `{name}` of {place}"), payload.as_ref(), other.as_ref());
                }
                None => self.0.push(format!("case `{name}` of {place} is missing")),
            }
        }
        for (name, _) in found {
            if !expected.iter().any(|(other, _)| other == name) {
                self.0.push(format!("case `{name}` of {place} does not exist in this version"));
            }
        }
        if self.0.len() == before && expected.iter().zip(found).any(|(a, b)| a.0 != b.0) {
            self.0.push(format!("the cases of {place} stand in another order"));
        }
    }

    fn payload(&mut self, place: &str, expected: Option<&Shape>, found: Option<&Shape>) {
        match (expected, found) {
            (Some(expected), Some(found)) => self.shape(place, expected, found),
            (None, None) => {}
            (Some(expected), None) => self.0.push(format!("{place} has no payload, it must have {expected}")),
            (None, Some(found)) => self.0.push(format!("{place} has the payload {found}, it must have none")),
        }
    }
}

/// A type, without names of its own: the contract is compared by structure.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    Primitive(&'static str),
    List(Box<Self>),
    Option(Box<Self>),
    Tuple(Vec<Self>),
    Record(Vec<(String, Self)>),
    /// Variants and enums: an enum has no payloads.
    Variant(Vec<(String, Option<Self>)>),
    Result(Option<Box<Self>>, Option<Box<Self>>),
    /// Anything the contract never uses.
    Other(&'static str),
}

impl Shape {
    fn of(ty: &Type) -> Self {
        let boxed = |ty: Option<Type>| ty.map(|ty| Box::new(Self::of(&ty)));
        match ty {
            Type::Bool => Self::Primitive("bool"),
            Type::S8 => Self::Primitive("s8"),
            Type::U8 => Self::Primitive("u8"),
            Type::S16 => Self::Primitive("s16"),
            Type::U16 => Self::Primitive("u16"),
            Type::S32 => Self::Primitive("s32"),
            Type::U32 => Self::Primitive("u32"),
            Type::S64 => Self::Primitive("s64"),
            Type::U64 => Self::Primitive("u64"),
            Type::Float32 => Self::Primitive("f32"),
            Type::Float64 => Self::Primitive("f64"),
            Type::Char => Self::Primitive("char"),
            Type::String => Self::Primitive("string"),
            Type::List(list) => Self::List(Box::new(Self::of(&list.ty()))),
            Type::Option(option) => Self::Option(Box::new(Self::of(&option.ty()))),
            Type::Tuple(tuple) => Self::Tuple(tuple.types().map(|ty| Self::of(&ty)).collect()),
            Type::Record(record) => Self::Record(
                record.fields().map(|field| (field.name.to_owned(), Self::of(&field.ty))).collect(),
            ),
            Type::Variant(variant) => Self::Variant(
                variant.cases().map(|case| (case.name.to_owned(), case.ty.map(|ty| Self::of(&ty)))).collect(),
            ),
            Type::Enum(names) => Self::Variant(names.names().map(|name| (name.to_owned(), None)).collect()),
            Type::Result(result) => Self::Result(boxed(result.ok()), boxed(result.err())),
            Type::Flags(_) => Self::Other("flags"),
            Type::Own(_) | Type::Borrow(_) => Self::Other("a resource"),
            Type::Future(_) | Type::Stream(_) | Type::ErrorContext => Self::Other("an async type"),
            _ => Self::Other("a type this host does not know"),
        }
    }

    fn expected(resolve: &wit_parser::Resolve, ty: &wit_parser::Type) -> Self {
        use wit_parser::Type as T;
        match ty {
            T::Bool => Self::Primitive("bool"),
            T::S8 => Self::Primitive("s8"),
            T::U8 => Self::Primitive("u8"),
            T::S16 => Self::Primitive("s16"),
            T::U16 => Self::Primitive("u16"),
            T::S32 => Self::Primitive("s32"),
            T::U32 => Self::Primitive("u32"),
            T::S64 => Self::Primitive("s64"),
            T::U64 => Self::Primitive("u64"),
            T::F32 => Self::Primitive("f32"),
            T::F64 => Self::Primitive("f64"),
            T::Char => Self::Primitive("char"),
            T::String => Self::Primitive("string"),
            T::Id(id) => Self::expected_kind(resolve, &resolve.types[*id].kind),
            T::ErrorContext => Self::Other("an async type"),
        }
    }

    fn expected_kind(resolve: &wit_parser::Resolve, kind: &wit_parser::TypeDefKind) -> Self {
        use wit_parser::TypeDefKind as K;
        let of = |ty: &wit_parser::Type| Self::expected(resolve, ty);
        let boxed = |ty: &Option<wit_parser::Type>| ty.as_ref().map(|ty| Box::new(of(ty)));
        match kind {
            K::Type(ty) => of(ty),
            K::List(ty) => Self::List(Box::new(of(ty))),
            K::Option(ty) => Self::Option(Box::new(of(ty))),
            K::Tuple(tuple) => Self::Tuple(tuple.types.iter().map(of).collect()),
            K::Record(record) => {
                Self::Record(record.fields.iter().map(|field| (field.name.clone(), of(&field.ty))).collect())
            }
            K::Variant(variant) => Self::Variant(
                variant.cases.iter().map(|case| (case.name.clone(), case.ty.as_ref().map(of))).collect(),
            ),
            K::Enum(cases) => {
                Self::Variant(cases.cases.iter().map(|case| (case.name.clone(), None)).collect())
            }
            K::Result(result) => Self::Result(boxed(&result.ok), boxed(&result.err)),
            _ => Self::Other("a type the contract does not use"),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |names: Vec<&str>| names.join(", ");
        match self {
            Self::Primitive(name) | Self::Other(name) => f.write_str(name),
            Self::List(item) => write!(f, "list<{item}>"),
            Self::Option(item) => write!(f, "option<{item}>"),
            Self::Tuple(items) => {
                let items: Vec<_> = items.iter().map(ToString::to_string).collect();
                write!(f, "tuple<{}>", items.join(", "))
            }
            Self::Record(fields) => {
                write!(f, "record {{ {} }}", names(fields.iter().map(|(name, _)| &**name).collect()))
            }
            Self::Variant(cases) => {
                write!(f, "variant {{ {} }}", names(cases.iter().map(|(name, _)| &**name).collect()))
            }
            Self::Result(ok, err) => {
                let text = |side: &Option<Box<Self>>| side.as_ref().map_or("_".to_owned(), |s| s.to_string());
                write!(f, "result<{}, {}>", text(ok), text(err))
            }
        }
    }
}

struct Interface {
    functions: Vec<(String, Function)>,
}

struct Function {
    params: Vec<(String, Shape)>,
    result: Option<Shape>,
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let params: Vec<_> = self.params.iter().map(|(name, shape)| format!("{name}: {shape}")).collect();
        write!(f, "func({})", params.join(", "))?;
        self.result.as_ref().map_or(Ok(()), |result| write!(f, " -> {result}"))
    }
}

/// Returns one interface of the contract, read from its text once.
fn contract(interface: &str) -> &'static Interface {
    static INTERFACES: LazyLock<Vec<(String, Interface)>> = LazyLock::new(|| {
        let mut resolve = wit_parser::Resolve::default();
        let package = resolve.push_source("policy.wit", super::WIT).expect("our own contract parses");
        let interface = |id: &wit_parser::InterfaceId| Interface {
            functions: resolve.interfaces[*id]
                .functions
                .iter()
                .map(|(name, function)| {
                    let param = |param: &wit_parser::Param| {
                        (param.name.clone(), Shape::expected(&resolve, &param.ty))
                    };
                    let function = Function {
                        params: function.params.iter().map(param).collect(),
                        result: function.result.as_ref().map(|ty| Shape::expected(&resolve, ty)),
                    };
                    (name.clone(), function)
                })
                .collect(),
        };
        let interfaces = &resolve.packages[package].interfaces;
        interfaces.iter().map(|(name, id)| (name.clone(), interface(id))).collect()
    });
    let found = INTERFACES.iter().find(|(name, _)| name == interface);
    &found.expect("only names of the contract are asked for").1
}
