//! What a function can return instead of doing its work.

use syn::{GenericArgument, PathArguments, ReturnType, Type, TypePath};

/// Expressions for the return type `output`; empty if none can be guessed.
pub(crate) fn of_return(output: &ReturnType) -> Vec<String> {
    match output {
        ReturnType::Default => vec!["()".to_owned()],
        ReturnType::Type(_, of) => of_type(of),
    }
}

fn of_type(of: &Type) -> Vec<String> {
    match of {
        Type::Path(path) => of_path(path),
        Type::Tuple(tuple) if tuple.elems.is_empty() => vec!["()".to_owned()],
        Type::Tuple(_) => vec!["Default::default()".to_owned()],
        Type::Reference(reference) => match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => vec!["\"\"".to_owned()],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

fn of_path(path: &TypePath) -> Vec<String> {
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let inner = || match &last.arguments {
        PathArguments::AngleBracketed(generics) => generics.args.iter().find_map(|one| match one {
            GenericArgument::Type(inner) => Some(of_type(inner)),
            _ => None,
        }),
        _ => None,
    };
    let wrapped = |in_what: &str| {
        let values = inner().unwrap_or_default();
        values.into_iter().map(|value| format!("{in_what}({value})")).collect::<Vec<_>>()
    };
    let name = last.ident.to_string();
    match name.as_str() {
        "bool" => vec!["true".to_owned(), "false".to_owned()],
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i32" | "i64" | "i128" | "isize" => {
            vec!["0".to_owned(), "1".to_owned()]
        }
        "Option" => [vec!["None".to_owned()], wrapped("Some")].concat(),
        _ if name.ends_with("Result") => wrapped("Ok"),
        "Box" | "Arc" | "Rc" | "Pin" => Vec::new(),
        _ => vec!["Default::default()".to_owned()],
    }
}
