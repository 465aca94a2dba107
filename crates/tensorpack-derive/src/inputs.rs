//! `#[derive(Inputs)]`.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Expr, Field, Fields, Ident, LitStr, Result, Token, bracketed};

/// The element types, as they are written in an attribute and as variants of `DType`.
const DTYPES: [(&str, &str); 8] = [
    ("f32", "F32"),
    ("f64", "F64"),
    ("bf16", "Bf16"),
    ("f16", "F16"),
    ("i32", "I32"),
    ("i64", "I64"),
    ("u8", "U8"),
    ("bool", "Bool"),
];

/// The arguments of `#[input(..)]`.
struct Attribute {
    /// The variant of `DType`.
    dtype: Ident,
    /// The sizes, each an `Option<usize>`.
    sizes: Vec<TokenStream>,
    name: Option<LitStr>,
    allow_infinite: bool,
}

impl Parse for Attribute {
    fn parse(input: ParseStream<'_>) -> Result<Attribute> {
        let written = Ident::parse_any(input)?;
        let Some((_, variant)) = DTYPES.iter().find(|(name, _)| written == name) else {
            let known = DTYPES.map(|(name, _)| name).join(", ");
            return Err(Error::new(written.span(), format!("unknown element type; use one of {known}")));
        };
        let dtype = Ident::new(variant, written.span());
        input.parse::<Token![,]>()?;
        let inside;
        bracketed!(inside in input);
        let sizes = Punctuated::<Expr, Token![,]>::parse_terminated(&inside)?;
        let mut attribute =
            Attribute { dtype, sizes: sizes.iter().map(size).collect(), name: None, allow_infinite: false };
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            let option: Ident = input.parse()?;
            if option == "name" && attribute.name.is_none() {
                input.parse::<Token![=]>()?;
                attribute.name = Some(input.parse()?);
            } else if option == "allow_infinite" && !attribute.allow_infinite {
                attribute.allow_infinite = true;
            } else {
                let why = "expected `name = \"NAME\"` or `allow_infinite`, each at most once";
                return Err(Error::new(option.span(), why));
            }
        }
        Ok(attribute)
    }
}

/// Returns a size as an `Option<usize>`. The span makes a size of another type an error there.
fn size(expr: &Expr) -> TokenStream {
    match expr {
        Expr::Path(path) if path.path.is_ident("None") => quote!(::core::option::Option::<usize>::None),
        size => quote_spanned!(size.span()=> ::core::option::Option::<usize>::Some(#size)),
    }
}

/// Returns the attribute of a field.
fn attribute(field: &Field) -> Result<Attribute> {
    let mut found = field.attrs.iter().filter(|a| a.path().is_ident("input"));
    let Some(first) = found.next() else {
        let why =
            "this field needs an attribute: #[input(DTYPE, [SIZES])], such as #[input(f32, [None, 28])]";
        return Err(Error::new(field.ident.span(), why));
    };
    match found.next() {
        Some(second) => Err(Error::new(second.span(), "this field already has an #[input(..)]")),
        None => first.parse_args(),
    }
}

/// Checks the name of an input.
fn check_name(name: &str, span: Span, before: &[String]) -> Result<()> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let why = if name.is_empty() || !name.chars().all(is_allowed) {
        "an input name must not be empty; it consists of letters (a to z), digits and _ - ."
    } else if before.iter().any(|b| b == name) {
        "another input has the same name"
    } else {
        return Ok(());
    };
    Err(Error::new(span, why))
}

/// Returns the implementation of `Inputs` for a struct.
pub(crate) fn derive(item: TokenStream) -> Result<TokenStream> {
    let item: DeriveInput = syn::parse2(item)?;
    let Data::Struct(data) = &item.data else {
        return Err(Error::new(item.ident.span(), "Inputs can be derived only for a struct"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new(item.ident.span(), "Inputs needs named fields: their names are the inputs'"));
    };
    let (mut names, mut specs, mut bindings, mut values) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut errors: Option<Error> = None;
    for (i, field) in fields.named.iter().enumerate() {
        let Some(ident) = &field.ident else { continue };
        let parsed = attribute(field).and_then(|a| {
            let (name, span) = match &a.name {
                Some(name) => (name.value(), name.span()),
                None => (ident.unraw().to_string(), ident.span()),
            };
            check_name(&name, span, &names).map(|()| (a, name))
        });
        let (Attribute { dtype, sizes, allow_infinite, .. }, name) = match parsed {
            Ok(parsed) => parsed,
            // Report the errors of all fields at once.
            Err(e) => {
                match &mut errors {
                    Some(all) => all.combine(e),
                    None => errors = Some(e),
                }
                continue;
            }
        };
        let infinite = allow_infinite.then(|| quote!(.allow_infinite()));
        specs.push(quote! {
            ::tensorpack::graph::TensorSpec::new(
                #name,
                ::tensorpack::DType::#dtype,
                ::std::vec::Vec::<::core::option::Option<usize>>::from([#(#sizes),*]),
            )#infinite
        });
        let binding = format_ident!("tensor{i}");
        values.push(quote_spanned! {field.ty.span()=>
            #ident: <::tensorpack::graph::Tensor as ::core::clone::Clone>::clone(#binding)
        });
        bindings.push(binding);
        names.push(name);
    }
    if let Some(errors) = errors {
        return Err(errors);
    }
    let ident = &item.ident;
    let takes =
        format!("{ident} has {} inputs ({}), but {{}} tensors were given", names.len(), names.join(", "));
    let (generics, arguments, bounds) = item.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #generics ::tensorpack::tower::Inputs for #ident #arguments #bounds {
            fn signature() -> ::std::vec::Vec<::tensorpack::graph::TensorSpec> {
                ::std::vec![#(#specs),*]
            }

            fn from_tensors(tensors: &[::tensorpack::graph::Tensor]) -> ::tensorpack::Result<Self> {
                match tensors {
                    [#(#bindings),*] => ::core::result::Result::Ok(#ident { #(#values),* }),
                    _ => ::core::result::Result::Err(::tensorpack::Error::argument(
                        ::std::format!(#takes, tensors.len()),
                    )),
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(item: TokenStream) -> String {
        derive(item).expect_err("the item is wrong").into_compile_error().to_string()
    }

    #[test]
    fn names_types_and_sizes_become_specs() {
        let code = derive(quote! {
            struct Batch {
                #[input(f32, [None, 2 * SIDE], name = "input", allow_infinite)]
                image: Tensor,
                #[input(bool, [],)]
                r#use: Tensor,
            }
        });
        let code = code.unwrap().to_string().replace(' ', "");
        assert!(code.contains("\"input\",::tensorpack::DType::F32"), "{code}");
        assert!(
            code.contains("Option::<usize>::None,::core::option::Option::<usize>::Some(2*SIDE)]"),
            "{code}"
        );
        assert_eq!(code.matches(".allow_infinite()").count(), 1, "{code}");
        assert!(
            code.contains(
                "\"use\",::tensorpack::DType::Bool,::std::vec::Vec::<::core::option::Option<usize>>::from([])"
            ),
            "{code}"
        );
        assert!(code.contains("2inputs(input,use)"), "{code}");
    }

    #[test]
    fn wrong_attributes_are_errors() {
        for (attribute, expected) in [
            (quote!(), "needs an attribute"),
            (quote!(#[input]), "input"),
            (quote!(#[input(f8, [None])]), "one of f32, f64, bf16"),
            (quote!(#[input(f32)]), "expected"),
            (quote!(#[input(f32, None)]), "square brackets"),
            (quote!(#[input(f32, [None], nmae = "x")]), "allow_infinite"),
            (quote!(#[input(f32, [None], name = "a/b")]), "must not"),
            (quote!(#[input(f32, [None], name = "a{b}")]), "must not"),
            (quote!(#[input(f32, [None], name = "größe")]), "must not"),
            (quote!(#[input(f32, [None], name = "x", name = "y")]), "at most once"),
            (quote!(#[input(f32, [None])] #[input(f32, [None])]), "already has"),
        ] {
            let text = error(quote!(struct Batch { #attribute image: Tensor }));
            assert!(text.contains(expected), "{attribute}: {text}");
        }
        let same = error(quote! {
            struct Batch {
                #[input(f32, [None])]
                x: Tensor,
                #[input(f32, [None], name = "x")]
                y: Tensor,
            }
        });
        assert!(same.contains("same name"), "{same}");
    }

    #[test]
    fn all_fields_are_checked_at_once() {
        let both = error(quote!(
            struct Batch {
                image: Tensor,
                #[input(int, [])]
                label: Tensor,
            }
        ));
        assert!(both.contains("needs an attribute") && both.contains("element type"), "{both}");
    }

    #[test]
    fn only_structs_with_named_fields() {
        assert!(
            error(quote!(
                enum Batch {
                    A,
                }
            ))
            .contains("struct")
        );
        assert!(
            error(quote!(
                struct Batch(Tensor);
            ))
            .contains("named fields")
        );
    }
}
