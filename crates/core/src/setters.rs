//! Setters of option structs: one for each field, with the field's name.

/// Gives an option struct a chained setter for each field that is named.
///
/// `field: Type` takes the type, `field: into Type` all that converts into it; an `Option<T>` is
/// then set by a plain `T`, or by an `Option<T>`.
///
/// ```
/// #[derive(Default)]
/// struct PrintOptions { copies: u32, title: Option<String> }
/// datapipes_core::setters! { PrintOptions { copies: u32, title: into Option<String> } }
/// let options = PrintOptions::default().copies(2).title("notes".to_owned());
/// assert_eq!((options.copies, options.title.as_deref()), (2, Some("notes")));
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($options:ident { $($rest:tt)* }) => {
        impl $options { $crate::setters!(@each $($rest)*); }
    };
    (@each) => {};
    (@each $field:ident: into $type:ty $(, $($rest:tt)*)?) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: impl Into<$type>) -> Self {
            self.$field = $field.into();
            self
        }
        $($crate::setters!(@each $($rest)*);)?
    };
    (@each $field:ident: $type:ty $(, $($rest:tt)*)?) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
        $($crate::setters!(@each $($rest)*);)?
    };
}
