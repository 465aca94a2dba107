//! The derive macros of `tensorpack`, which re-exports them.

mod inputs;

use proc_macro::TokenStream;

/// Implements the trait `Inputs` for a struct of tensors: each field is an input, in order.
///
/// Every field has type `Tensor` and an attribute `#[input(DTYPE, [SIZES])]`. `DTYPE` is one of
/// `f32`, `f64`, `bf16`, `f16`, `i32`, `i64`, `u8` and `bool`. A size is `None` if it is known only when
/// the input is fed, and otherwise an expression of type `usize`. Two options may follow:
///
/// - `name = "NAME"` sets the name of the input, which defaults to the name of the field;
/// - `allow_infinite` accepts infinities, which are rejected by default.
///
/// ```text
/// #[derive(Inputs)]
/// struct Batch {
///     #[input(f32, [None, 28, 28])]
///     image: Tensor,
///     #[input(i32, [None])]
///     label: Tensor,
/// }
/// ```
#[proc_macro_derive(Inputs, attributes(input))]
pub fn derive_inputs(item: TokenStream) -> TokenStream {
    inputs::derive(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
