//! What functions and bodies are told when a device is launched.

use datapipes_core::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The arguments of a function or a body: a value that serde serializes. They go to the device as
/// JSON, within the message that launches it.
///
/// ```
/// use datapipes_fabric::device::DeviceArguments;
/// let arguments = DeviceArguments::of(&("key", 7u8))?;
/// assert_eq!(arguments.parse::<(String, u8)>()?, ("key".to_owned(), 7));
/// assert!(arguments.parse::<u64>().is_err());
/// # Ok::<(), datapipes_fabric::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceArguments(Value);

impl DeviceArguments {
    /// The arguments of this value. Without any, there is `default`.
    ///
    /// # Errors
    /// `InvalidInput` for what JSON cannot say: a map whose keys are no strings.
    pub fn of(value: &impl Serialize) -> Result<DeviceArguments> {
        serde_json::to_value(value).map(DeviceArguments).map_err(wrong)
    }

    /// The value, as the function takes it.
    ///
    /// # Errors
    /// `InvalidInput` where they are none of that type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&self.0).map_err(wrong)
    }
}

fn wrong(e: serde_json::Error) -> Error {
    Error::new(ErrorKind::InvalidInput, "launch", format!("the arguments of a device: {e}")).with_source(e)
}
