//! Types whose JSON is their text.

/// Lets serde read these types by their `FromStr`, and write them by their `Display`: `text_form!(Error: Type, Type)`.
macro_rules! text_form {
    ($error:ty: $($t:ty),*) => {$(
        impl TryFrom<String> for $t {
            type Error = $error;
            fn try_from(text: String) -> Result<Self, $error> {
                text.parse()
            }
        }
        impl From<$t> for String {
            fn from(value: $t) -> String {
                value.to_string()
            }
        }
    )*};
}
pub(crate) use text_form;
