//! Places by name.
#![no_main]

use datapipes_core::Uri;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| match text.parse::<Uri>() {
    Ok(Uri::Ssd { path, .. }) => assert!(!path.as_os_str().is_empty()),
    Ok(Uri::CoreCache { level, .. }) => assert!((2..=3).contains(&level)),
    Ok(Uri::Dram { len, .. }) => assert!(i64::try_from(len).is_ok()),
    Ok(_) => {}
    Err(e) => assert!(e.to_string().contains(text)),
});
